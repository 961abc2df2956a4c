"""Sums the gradients of two workers where they are needed: each on the worker that updates the weight.

An all-reduce gives both workers all sums, and moves twice as many bytes. A sum of two is the same to the last bit in
either order, so that weights are those of the all-reduce.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_collectives
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.weight_exchange import MAX_PIECES, Piece, pieces


def can_sum_at_owners(replicas: Replicas) -> bool:
    """Whether there are two workers with one replica each."""
    return replicas.num_workers == replicas.num_replicas == 2 and not tf.executing_eagerly()


def sums_at_owners(
    gradients: Sequence[Any], variables: Sequence[keras.Variable], owners: Mapping[int, int], replicas: Replicas
) -> list[Any]:
    """The sums over both workers of the gradients of the weights that this worker owns; zeros for the others.

    Args:
        gradients: dense gradients of this worker.
        variables: their weights, in the same order on both workers.
        owners: the replica that owns each weight, by the weight's id.
        replicas: of the model.
    """
    own_of = {id(variable): gradient for variable, gradient in zip(variables, gradients, strict=True)}
    received: dict[int, list[Any]] = {id(variable): [] for variable in variables}
    done: list[Any] = []
    with tf.device(replicas.devices[0]):
        for piece in pieces(variables, owners):
            mine = piece.owner == replicas.first_replica
            own = [own_of[id(variable)] for variable in piece.variables]
            before = [*done[-MAX_PIECES : len(done) - MAX_PIECES + 1], *(own if mine else ())]
            with tf.control_dependencies(before):
                value = _cut(piece, own)
            [result] = private_collectives.broadcast(
                replicas.strategy, [None if mine else value], piece.shape, own[0].dtype, after=[before]
            )
            if mine:
                result = value + result
                _note(piece, result, received)
            done.append(result)
        return [_joined(received[id(v)], g) for v, g in zip(variables, gradients, strict=True)]


def _cut(piece: Piece, gradients: list[Any]) -> tf.Tensor:
    if piece.rows is not None:
        return gradients[0][piece.rows[0] : piece.rows[1]]
    return tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0)


def _note(piece: Piece, total: tf.Tensor, received: dict[int, list[Any]]) -> None:
    parts = [total] if piece.rows else tf.split(total, [int(math.prod(one.shape)) for one in piece.variables])
    for variable, part in zip(piece.variables, parts, strict=True):
        received[id(variable)].append(part)


def _joined(parts: list[Any], gradient: Any) -> tf.Tensor:
    """The sum of a gradient from its parts; zeros, which nothing reads, if another worker has it."""
    if not parts:
        return tf.zeros(gradient.shape, gradient.dtype)
    return tf.reshape(parts[0] if len(parts) == 1 else tf.concat(parts, 0), gradient.shape)
