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
    """The sums over both workers of the gradients of the weights that this worker owns; its own for the others.

    Args:
        gradients: dense gradients of this worker.
        variables: their weights, in the same order on both workers.
        owners: the replica that owns each weight, by the weight's id.
        replicas: of the model.
    """
    sums = {id(variable): gradient for variable, gradient in zip(variables, gradients, strict=True)}
    done: list[Any] = []
    with tf.device(replicas.devices[0]):
        for piece in pieces(variables, owners):
            mine = piece.owner == replicas.first_replica
            if mine and piece.rows is not None and piece.rows[0] == 0:  # a copy: others may read the gradient
                sums[id(piece.variables[0])] = tf.raw_ops.DeepCopy(x=sums[id(piece.variables[0])])
            own = [sums[id(variable)] for variable in piece.variables]
            before = [*done[-MAX_PIECES : len(done) - MAX_PIECES + 1], *(own if mine else ())]
            with tf.control_dependencies(before):
                value = None if mine else _cut(piece, own)
            [result] = private_collectives.broadcast(
                replicas.strategy, [value], piece.shape, own[0].dtype, after=[before]
            )
            if mine:
                added = _added(piece, own, result)
                sums.update(zip(map(id, piece.variables), added, strict=True))
            done.append(added[0] if mine else result)
    return [sums[id(variable)] for variable in variables]


def _cut(piece: Piece, gradients: list[Any]) -> tf.Tensor:
    if piece.rows is not None:
        return gradients[0][piece.rows[0] : piece.rows[1]]
    return tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0)


def _added(piece: Piece, gradients: list[Any], received: tf.Tensor) -> list[tf.Tensor]:
    """Gradients plus a received piece: new tensors, but rows are added in place, which takes no further memory."""
    if piece.rows is not None:
        return [tf.raw_ops.InplaceAdd(x=gradients[0], i=tf.range(*piece.rows), v=received)]
    parts = tf.split(received, [int(math.prod(one.shape)) for one in piece.variables])
    return [gradient + tf.reshape(part, gradient.shape) for gradient, part in zip(gradients, parts, strict=True)]
