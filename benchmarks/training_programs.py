"""The programs of the engine's benchmark: `tfaccel.fit`, `Model.fit`, and a hand-written loop."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.benchmarks.engine_tasks import Task
from tfaccel.benchmarks.epoch_clock import EpochClock, StepTimes, WindowTimes
from tfaccel.benchmarks.measurement import Window
from tfaccel.training.fit import fit


class TrainedModel:
    """A compiled model that can be reset, so that every run trains the same.

    Args:
        task: the task.
        weights: the initial weights; by default those of its initializers.
        strategy: the strategy in whose scope it is built.
    """

    def __init__(
        self, task: Task, weights: list[np.ndarray] | None = None, strategy: tf.distribute.Strategy | None = None
    ) -> None:
        self._strategy = strategy
        with self.scope():
            self.model = task.compiled_model()
            self.weights = weights if weights is not None else self.model.get_weights()
            self.model.optimizer.build(self.model.trainable_variables)
            self._optimizer_values = [variable.numpy() for variable in self.model.optimizer.variables]

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """The strategy's scope."""
        return self._strategy.scope() if self._strategy is not None else contextlib.nullcontext()

    def reset(self) -> None:
        """Resets weights, optimizer and metrics to the initial state."""
        with self.scope():
            self.model.set_weights(self.weights)
            for variable, value in zip(self.model.optimizer.variables, self._optimizer_values, strict=True):
                variable.assign(value)
            self.model.reset_metrics()

    def check_steps(self, expected: int) -> None:
        """Raises RuntimeError unless exactly the expected number of steps was made since the reset."""
        made = int(self.model.optimizer.iterations.numpy())
        if made != expected:
            raise RuntimeError(f"{self.model.name} made {made} optimizer steps, expected {expected}: not comparable.")


class FitProgram:
    """`tfaccel.fit` or `Model.fit` on arrays or on a `tf.data.Dataset`.

    Args:
        name: the name of the program.
        task: the task.
        start: the model.
        is_tfaccel: whether to use `tfaccel.fit`, else `Model.fit`.
        dataset: the dataset to train on; None for arrays.
        options: `verbose` and `shuffle`, as for `fit` (0 and True by default).
    """

    def __init__(
        self,
        name: str,
        task: Task,
        start: TrainedModel,
        *,
        is_tfaccel: bool,
        dataset: tf.data.Dataset | None = None,
        **options: Any,
    ) -> None:
        self.name = name
        self.num_steps = task.num_steps
        self._task = task
        self._start = start
        self._dataset = dataset
        self._arrays = None if dataset is not None else task.arrays()
        self._options = {"verbose": 0, "shuffle": True, **options}
        self._clock = EpochClock()
        self._is_tfaccel = is_tfaccel
        self._callback: WindowTimes | StepTimes = WindowTimes(self._clock) if is_tfaccel else StepTimes(self._clock)
        self._fit: Callable[..., Any] = fit if is_tfaccel else keras.Model.fit

    def warm_up(self) -> float:
        """Trains on the batches in order; returns the final loss."""
        self._start.reset()
        loss = self._train({**self._options, "shuffle": False})
        self._start.check_steps(self.num_steps)
        model = self._start.model
        if isinstance(self._callback, StepTimes):
            model.train_function = self._callback.wrap(model.train_function)
        return loss

    def run(self) -> Window:
        """Trains once as a user would, timed."""
        self._start.reset()
        window = self._clock.time(lambda: self._train({**self._options, "callbacks": [self._callback]}))
        self._start.check_steps(self.num_steps)
        return window

    def _train(self, options: dict[str, Any]) -> float:
        options = {**options, "epochs": self._task.num_epochs}
        if self._arrays is None:
            data: tuple[Any, ...] = (self._dataset,)
            options["shuffle"] = False  # Datasets shuffle themselves; Keras warns about anything else.
        else:
            data = self._arrays
            options["batch_size"] = self._task.global_batch_size
        with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            history = self._fit(self._start.model, *data, **options)
        return float(history.history["loss"][-1])


class HandWrittenLoop:
    """The loop that an expert writes: `tf.data`, one `tf.function` with a loop in the graph, one call per epoch.

    It does the same step as Keras: forward, loss, gradients, optimizer, mean loss and accuracy.
    """

    def __init__(self, task: Task, start: TrainedModel) -> None:
        self.name = "hand-written loop"
        self.num_steps = task.num_steps
        self._task = task
        self._start = start
        self._dataset = task.dataset()
        self._clock = EpochClock()
        self._mean_loss = keras.metrics.Mean()
        self._accuracy = keras.metrics.SparseCategoricalAccuracy()
        self._epoch_function = tf.function(self._epoch)

    def warm_up(self) -> float:
        """Trains once; returns the final loss."""
        return self.run().loss

    def run(self) -> Window:
        """Trains once, timed."""
        self._start.reset()
        window = self._clock.time(self._train)
        self._start.check_steps(self.num_steps)
        return window

    def _train(self) -> float:
        loss = 0.0
        for _ in range(self._task.num_epochs):
            self._mean_loss.reset_state()
            self._accuracy.reset_state()
            iterator = iter(self._dataset)
            self._clock.epoch_begins()
            self._clock.batches_begin()
            self._epoch_function(iterator, tf.constant(self._task.steps_per_epoch))
            self._clock.batches_end()
            loss, _ = float(self._mean_loss.result()), float(self._accuracy.result())
        return loss

    def _epoch(self, iterator: Any, num_steps: tf.Tensor) -> None:
        for _ in tf.range(num_steps):
            self._train_step(*next(iterator))

    def _train_step(self, x: tf.Tensor, y: tf.Tensor) -> None:
        model = self._start.model
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        self._mean_loss.update_state(loss)
        self._accuracy.update_state(y, logits)
