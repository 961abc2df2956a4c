"""Gives the weights that one replica has updated to the others: by copies within a process, by broadcasts to others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_collectives
from tfaccel.training.private.private_api import tf_variable
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.slot_places import num_bytes

# Smaller weights of one owner travel together; larger ones alone, without a copy.
_PACK_BYTES = 4 << 20


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
        tf.function(lambda: _broadcast(variables, owners, replicas, ()), autograph=False)()
    else:
        _broadcast(variables, owners, replicas, after)


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
    for owner, pack in packs(variables, owners):
        own = owner - replicas.first_replica
        sizes = [int(math.prod(variable.shape)) for variable in pack]
        dtype = tf.as_dtype(pack[0].dtype)
        values: list[Any] = [None] * len(replicas.devices)
        if 0 <= own < len(values):
            with tf.device(replicas.devices[own]):
                new = [one.read_value() for one in replicas.components(pack, own)]
                values[own] = new[0] if len(new) == 1 else tf.concat([tf.reshape(one, [-1]) for one in new], 0)
        shape = list(pack[0].shape) if len(pack) == 1 else [sum(sizes)]
        received = private_collectives.broadcast(replicas.strategy, values, shape, dtype, after=after)
        for replica, value in enumerate(received):
            if value is not None:
                with tf.device(replicas.devices[replica]):
                    split = [value] if len(pack) == 1 else tf.split(value, sizes)
                    for part, piece in zip(replicas.components(pack, replica), split, strict=True):
                        part.assign(tf.reshape(piece, part.shape))


def packs(
    variables: Sequence[keras.Variable], owners: Mapping[int, int]
) -> Iterator[tuple[int, list[keras.Variable]]]:
    """Owners with weights of theirs that travel together: of one dtype, and small, or one alone."""
    open_packs: dict[tuple[int, str], list[keras.Variable]] = {}
    for variable in variables:
        key = owners[id(variable)], str(variable.dtype)
        if num_bytes(variable) >= _PACK_BYTES:
            yield key[0], [variable]
            continue
        pack = open_packs.setdefault(key, [])
        pack.append(variable)
        if sum(map(num_bytes, pack)) >= _PACK_BYTES:
            yield key[0], open_packs.pop(key)
    for (owner, _), pack in open_packs.items():
        yield owner, pack
