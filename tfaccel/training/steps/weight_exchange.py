"""Gives the weights that one replica has updated to the others: by copies within a process, by broadcasts to others.

Between workers, weights travel in pieces of some 4 MB, several at a time: larger messages are slower, and take memory.
Small weights of one owner share a piece; a large one is divided by rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfaccel.graph_function import graph_function
from tfaccel.training.private import private_collectives, private_slots
from tfaccel.training.private.private_api import tf_variable
from tfaccel.training.private.private_collectives import PIECE_BYTES
from tfaccel.training.steps.model_parts import stepping_optimizers
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.slot_places import SHARDED, get_places, num_bytes, owners_of_weights

MAX_PIECES = 4  # on their way at a time


@dataclass(frozen=True)
class Piece:
    """What travels in one broadcast: whole weights of one dtype, or rows of one.

    Attributes:
        owner: the replica that sends it.
        variables: the weights.
        rows: first and last row, of a single weight that is divided; None for whole weights.
    """

    owner: int
    variables: tuple[keras.Variable, ...]
    rows: tuple[int, int] | None = None

    def value(self, parts: Sequence[Any]) -> Any:
        """The piece as one tensor, of the owner's components of the weights."""
        if self.rows is not None:
            return parts[0].read_value()[self.rows[0] : self.rows[1]]
        return tf.concat([tf.reshape(part.read_value(), [-1]) for part in parts], 0)

    @property
    def shape(self) -> list[int]:
        """The shape of that tensor."""
        if self.rows is not None:
            return [self.rows[1] - self.rows[0], *self.variables[0].shape[1:]]
        return [sum(int(math.prod(variable.shape)) for variable in self.variables)]

    def assign(self, parts: Sequence[Any], value: Any) -> Any:
        """Assigns the received tensor to the components of another replica; returns an operation."""
        if self.rows is not None:
            done = parts[0][self.rows[0] : self.rows[1]].assign(value)
            with tf.control_dependencies([done]):  # or each later step would copy the weight to read it
                return tf.raw_ops.DisableCopyOnRead(resource=parts[0].handle)
        split = tf.split(value, [int(math.prod(part.shape)) for part in parts])
        done = [
            part.assign(tf.reshape(one, part.shape), read_value=False) for part, one in zip(parts, split, strict=True)
        ]
        return tf.group(*done)


def give_weights(
    variables: Sequence[keras.Variable], owners: Mapping[int, int], replicas: Replicas, *, after: Sequence[Any] = ()
) -> None:
    """Gives each weight of its owner to all other replicas.

    Args:
        variables: the weights, in the same order on all workers.
        owners: the replica that has each weight's new value, by the weight's id.
        replicas: of the model.
        after: tensors that must be there before weights are received.
    """
    if replicas.num_workers == 1:
        for variable in variables:
            _copy(variable, owners[id(variable)], replicas)
    elif tf.executing_eagerly():  # the collectives of several devices must run at the same time
        graph_function(lambda: _broadcast(variables, owners, replicas, ()))()
    else:
        _broadcast(variables, owners, replicas, after)


def finalize_weights(optimizer: keras.optimizers.Optimizer, variables: Sequence[Any], replicas: Replicas) -> None:
    """`optimizer.finalize_variable_values`, which overwrites weights with their moving averages if there are some."""
    places = get_places(optimizer)
    if places is None or places.how != SHARDED or replicas.num_workers == 1:
        optimizer.finalize_variable_values(variables)
        return
    owners = owners_of_weights(optimizer, places)
    for one in (one for one in stepping_optimizers(optimizer) if one.use_ema):
        weights = private_slots.trained_variables(one)
        for weight, average in zip(weights, private_slots.moving_averages(one), strict=True):
            own = owners[id(weight)] - replicas.first_replica
            if average is not None and 0 <= own < len(replicas.devices):
                replicas.components([weight], own)[0].assign(tf_variable(average))
        give_weights(weights, owners, replicas)


def _copy(variable: keras.Variable, owner: int, replicas: Replicas) -> None:
    parts = replicas.strategy.experimental_local_results(tf_variable(variable))
    with tf.device(replicas.devices[owner]):
        new = parts[owner].read_value()
    for replica, part in enumerate(parts):
        if replica != owner:
            with tf.device(replicas.devices[replica]):
                part.assign(tf.identity(new))


def _broadcast(
    variables: Sequence[keras.Variable], owners: Mapping[int, int], replicas: Replicas, after: Sequence[Any]
) -> None:
    done: list[list[Any]] = [[] for _ in replicas.devices]  # operations of each local replica, in order
    for piece in pieces(variables, owners):
        own = piece.owner - replicas.first_replica
        values: list[Any] = [None] * len(replicas.devices)
        before = [[*after, *ops[-MAX_PIECES : len(ops) - MAX_PIECES + 1]] for ops in done]
        if 0 <= own < len(values):
            with tf.device(replicas.devices[own]), tf.control_dependencies(before[own]):
                values[own] = piece.value(replicas.components(piece.variables, own))
        dtype = tf.as_dtype(piece.variables[0].dtype)
        results = private_collectives.broadcast(replicas.strategy, values, piece.shape, dtype, after=before)
        for replica, result in enumerate(results):
            if values[replica] is None:
                with tf.device(replicas.devices[replica]):
                    result = piece.assign(replicas.components(piece.variables, replica), result)
            done[replica].append(result)


def pieces(variables: Sequence[keras.Variable], owners: Mapping[int, int]) -> list[Piece]:
    """The pieces in which weights travel, those of all owners in turn, so that all of them send at the same time."""
    by_owner: dict[int, list[Piece]] = {}
    for variable in variables:
        by_owner.setdefault(owners[id(variable)], [])
    for owner, own in by_owner.items():
        own += _get_pieces([v for v in variables if owners[id(v)] == owner], owner)
    turns = itertools.zip_longest(*by_owner.values())
    return [piece for turn in turns for piece in turn if piece is not None]


def _get_pieces(variables: Sequence[keras.Variable], owner: int) -> Iterator[Piece]:
    small: dict[str, list[keras.Variable]] = {}
    for variable in variables:
        size, num_rows = num_bytes(variable), variable.shape[0] if len(variable.shape) else 1
        if size > PIECE_BYTES and num_rows > 1:
            at_once = max(1, PIECE_BYTES * num_rows // size)
            for first in range(0, num_rows, at_once):
                yield Piece(owner, (variable,), (first, min(num_rows, first + at_once)))
            continue
        pack = small.setdefault(str(variable.dtype), [])
        pack.append(variable)
        if sum(map(num_bytes, pack)) >= PIECE_BYTES:
            yield Piece(owner, tuple(small.pop(str(variable.dtype))))
    for pack in small.values():
        yield Piece(owner, tuple(pack))
