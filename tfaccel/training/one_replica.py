"""The steps of a model with one replica: Keras's own steps, as on one device, whatever strategy made the variables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training import private_api
from tfaccel.training.gradients import densify
from tfaccel.training.model_parts import optimizers_of, variables_of
from tfaccel.training.overrides import instance_attributes
from tfaccel.training.replicas import Replicas


class OneReplica:
    """Train, test and predict steps on one device.

    Under a strategy of one replica Keras code works on the plain variables inside the distributed ones, so a whole
    step, the optimizer's update included, is one function that XLA can compile.
    """

    def __init__(self, model: keras.Model, replicas: Replicas, *, jit_compile: bool,
                 sum_duplicate_indices: bool = False) -> None:  # fmt: skip
        self._model = model
        self._replicas = replicas
        self._sum_duplicate_indices = sum_duplicate_indices
        self._jit_compile = jit_compile and not model.run_eagerly
        self._train = self._function(model.train_step)
        self._test = self._function(model.test_step)
        self._predict = self._function(model.predict_step)

    has_sparse_gradients = False  # nothing travels

    def train(self, batches: Any, batch: Any) -> Any:
        """One training step; returns what `train_step` returns."""
        return self._train(batches.rows(batch))

    def test(self, batches: Any, batch: Any) -> Any:
        """One evaluation step; returns what `test_step` returns."""
        return self._test(batches.rows(batch))

    def predict(self, batches: Any, batch: Any) -> Any:
        """Predictions of one batch."""
        return self._predict(batches.rows(batch))

    def _function(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(data: Any) -> Any:
            with contextlib.ExitStack() as stack:
                optimizers = optimizers_of(self._model).values()
                if not self._replicas.is_default:
                    stack.enter_context(self._replicas.local(variables_of(self._model), 0))
                    for optimizer in optimizers:
                        stack.enter_context(private_api.single_device_optimizer(optimizer))
                if self._sum_duplicate_indices:
                    for optimizer in optimizers:
                        stack.enter_context(instance_attributes(optimizer, _densified(optimizer)))
                return step(data)

        function = run
        if self._jit_compile:
            function = tf.function(run, jit_compile=True, autograph=False, reduce_retracing=True)

        def on_device(data: Any) -> Any:
            with tf.device(self._replicas.devices[0] or None):
                return function(data)

        return on_device


def _densified(optimizer: keras.optimizers.Optimizer) -> dict[str, Callable[..., Any]]:
    def apply(gradients: Any, trainable_variables: Any = None) -> None:
        type(optimizer).apply(optimizer, densify(list(gradients)), trainable_variables)

    return {"apply": apply}
