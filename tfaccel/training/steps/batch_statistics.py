"""Batch normalization on several replicas: which rows its statistics are computed over, and a note if not all.

One device computes mean and variance over the whole batch. A replica that sees only its own rows gets other values. So
`train` synchronizes the statistics over the replicas (`synchronize_batch_norm`); `fit` names layers that do not.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import PlanError
from tfaccel.training.private import private_api, private_layers
from tfaccel.training.steps.global_batch import current_share, gradient_of_exchanged, gradient_weight, zero_if_borrowed
from tfaccel.training.steps.overrides import instance_attributes

logger = logging.getLogger("tfaccel")

_synchronized: weakref.WeakSet[keras.Model] = weakref.WeakSet()
_said: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def synchronize_batch_norm(model: keras.Model) -> None:
    """Makes every `BatchNormalization` of a model, at any depth, compute its statistics over all replicas in training.

    The layers are not changed, so the model is saved as it was built. Frozen layers compute no statistics.
    """
    _synchronized.add(model)


def synchronized_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Layers that reduce over the replicas in their forward pass while training; frozen ones do not."""
    return [layer for layer in _layers_to_synchronize(model) if layer.trainable]


def layers_alike(model: keras.Model) -> list[keras.layers.Layer]:
    """Layers whose state is the same on all replicas, as long as each replica runs every step.

    These are synchronized layers, and spectral normalization, whose state depends only on the weights.
    """
    kind = keras.layers.SpectralNormalization
    return _layers_to_synchronize(model) + [one for one in private_api.all_layers(model) if isinstance(one, kind)]


def _layers_to_synchronize(model: keras.Model) -> list[keras.layers.Layer]:
    everywhere = model in _synchronized
    return [
        layer
        for layer in private_api.all_layers(model)
        if getattr(layer, "synchronized", False) or (everywhere and private_layers.takes_keras_moments(layer))
    ]


@contextlib.contextmanager
def replica_statistics(
    model: keras.Model,
    num_replicas: int,
    *,
    timed: Callable[[Any, Callable[[], Any]], Any] = lambda inputs, reduce: reduce(),
) -> Iterator[None]:
    """While tracing a training step: synchronized layers sum over the replicas; others are logged once."""
    synchronized = {id(layer) for layer in synchronized_layers(model)}
    alone: dict[str, None] = {}  # names, in order
    with contextlib.ExitStack() as stack:
        for layer in private_api.all_layers(model):
            if id(layer) in synchronized and private_layers.takes_keras_moments(layer):
                attributes = private_layers.global_moments(layer, _OverReplicas(layer.name, timed))
            elif isinstance(layer, keras.layers.BatchNormalization) and id(layer) not in synchronized:
                notice = functools.partial(alone.setdefault, layer.name)
                attributes = private_layers.noticed_moments(layer, notice)
            else:
                continue
            stack.enter_context(instance_attributes(layer, attributes))
        yield
    if alone and model not in _said:
        _said.add(model)
        _say_alone(list(alone), num_replicas, everywhere=model in _synchronized)


def _say_alone(names: list[str], num_replicas: int, *, everywhere: bool) -> None:
    cure = (
        "They override `call` or `_moments`, so that tfaccel cannot synchronize them"
        if everywhere
        else "Use BatchNormalization(synchronized=True), or synchronize_batch_norm=True in a plan"
    )
    logger.warning(
        "With %d replicas, batch normalization (%s) takes its statistics over the rows of one replica, not over the "
        "global batch: results differ from one device's and depend on the number of replicas. %s.",
        num_replicas,
        ", ".join(names),
        cure,
    )


def batch_norm_layers(model: keras.Model) -> list[str]:
    """The names of a model's trainable `BatchNormalization` layers, whose results depend on the micro-batch."""
    kind = keras.layers.BatchNormalization
    return [layer.name for layer in private_api.all_layers(model) if isinstance(layer, kind) and layer.trainable]


class _OverReplicas:
    """Sums over the replicas; the gradient is that of the sum of the replicas' losses, weighted by rows."""

    def __init__(self, layer_name: str, timed: Callable[[Any, Callable[[], Any]], Any]) -> None:
        self._layer_name, self._timed = layer_name, timed

    def own(self, sums: tf.Tensor) -> tf.Tensor:
        share = current_share()
        return sums if share is None else zero_if_borrowed(sums, share.row_weight)

    def sum(self, values: tf.Tensor) -> tf.Tensor:
        try:
            context = tf.distribute.get_replica_context()
            return self._timed(values, lambda: context.all_reduce(tf.distribute.ReduceOp.SUM, values))
        except RuntimeError as error:
            if "merge_call" not in str(error):
                raise
            raise PlanError(
                f"Batch normalization {self._layer_name!r} runs inside a loop or a function of its own (a recurrent "
                "cell, TimeDistributed over an unknown number of steps), where replicas cannot sum their statistics. "
                "Give the steps a fixed number, use one replica, or synchronize_batch_norm=False (synchronized=False)."
            ) from error

    def gradient(self, upstream: tf.Tensor) -> tf.Tensor:
        return gradient_of_exchanged(upstream, gradient_weight(), self.sum)
