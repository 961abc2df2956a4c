"""The programs of the recipes' benchmark: `tfaccel.train` with the default plan, and `Model.fit` in two ways."""

from __future__ import annotations

import abc
import functools
import os
import tempfile
import time
from typing import Any

import keras
import tensorflow as tf

from tfaccel.benchmarks.measurement import Window
from tfaccel.benchmarks.stated_results import StatedResult
from tfaccel.hardware.detect import detect_hardware
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.plan import Plan
from tfaccel.planning.run_length import compile_arguments
from tfaccel.planning.workload import Workload
from tfaccel.training.runtime import Runtime
from tfaccel.training.steps.model_parts import has_own_train_step
from tfaccel.training.train import train

_DEFAULT_BATCH_SIZE = 32  # the default of `Model.fit`


class RecipeTraining(abc.ABC):
    """Trains a recipe until it reaches its stated result, with a different seed in each run.

    Args:
        name: the name of the program.
        workload: the recipe's workload.
        epochs: maximum number of epochs.
        target: the recipe's stated result; None to train for all epochs.

    Attributes:
        reached: for each run, whether the target was reached.
        epochs_done: for each run, the number of epochs trained.
        results: for each run, the last validation metrics (or training metrics if there is no validation).
    """

    def __init__(self, name: str, workload: Workload, epochs: int, target: StatedResult | None) -> None:
        self.name = name
        self.workload = workload
        self.epochs = epochs
        self.target = target
        self.num_steps = epochs * max(1, (workload.num_train_examples or 0) // workload.global_batch_size)
        self.reached: list[bool] = []
        self.epochs_done: list[int] = []
        self.results: list[dict[str, float]] = []

    def warm_up(self) -> float:
        """Trains for one epoch; returns the loss."""
        clock = ResultClock(self.target)
        self._train(clock, seed=0, epochs=1)
        return clock.metrics["loss"]

    def run(self) -> Window:
        """Trains and measures the time, including building, tracing and compiling, for which a user waits too."""
        clock = ResultClock(self.target)
        cpu_seconds = time.process_time()
        self._train(clock, seed=len(self.results), epochs=self.epochs)
        cpu_seconds = time.process_time() - cpu_seconds
        self.reached.append(clock.reached)
        self.epochs_done.append(clock.epochs)
        self.results.append(clock.metrics)
        keras.backend.clear_session()
        return Window(
            wall_seconds=clock.seconds,
            cpu_seconds=cpu_seconds,
            epoch_seconds=(clock.seconds,),
            tail_seconds=(0.0,),
            loss=clock.metrics["loss"],
        )

    @abc.abstractmethod
    def _train(self, clock: ResultClock, *, seed: int, epochs: int) -> None:
        """Starts the clock, and trains with it as a callback."""


class ResultClock(keras.callbacks.Callback):
    """Stops training when the stated result is reached, and records the time since `start`."""

    def __init__(self, target: StatedResult | None) -> None:
        super().__init__()
        self._target = target
        self._started = 0.0
        self.seconds = 0.0
        self.reached = False
        self.epochs = 0
        self.metrics: dict[str, float] = {}

    def start(self) -> None:
        """Starts the clock."""
        self._started = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Records the time and the metrics."""
        self.seconds, self.epochs = time.perf_counter() - self._started, epoch + 1
        values = {name: float(value) for name, value in (logs or {}).items()}
        held_out = {name.removeprefix("val_"): value for name, value in values.items() if name.startswith("val_")}
        self.metrics = held_out or values
        if self._target is not None and self._target.is_reached(self.metrics[self._target.metric]):
            self.reached = True
            self.model.stop_training = True


class PlannedTraining(RecipeTraining):
    """`tfaccel.train` with the default plan, including its run directory and checkpoints."""

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan."""
        return default_plan(detect_hardware(), self.workload)

    def _train(self, clock: ResultClock, *, seed: int, epochs: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run_dir = os.path.join(folder, "run")
            clock.start()
            train(self.workload, self.plan, run_dir=run_dir, epochs=epochs, seed=seed, verbose=0, callbacks=[clock])


class PlainTraining(RecipeTraining):
    """`Model.fit` on the same model and data, with the recipe's own batches, optimizer and schedule.

    The input pipelines of all epochs are created before the clock starts.
    """

    def _train(self, clock: ResultClock, *, seed: int, epochs: int) -> None:
        work, size = self.workload, self._global_batch_size()
        with Runtime(Plan(strategy="none", devices=("CPU:0",), global_batch_size=size), seed=seed):
            passes = [work.train_data(size, seed=seed, epoch=epoch) for epoch in range(epochs)]
            batches = functools.reduce(lambda all_before, one: all_before.concatenate(one), passes)
            held_out = None if work.validation_data is None else work.validation_data(size).prefetch(tf.data.AUTOTUNE)
            clock.start()
            model = work.build_model()
            model.compile(**self._compile_args(model))
            model.fit(
                batches.prefetch(tf.data.AUTOTUNE),
                epochs=epochs,
                steps_per_epoch=int(passes[0].cardinality()),
                shuffle=False,
                verbose=0,
                validation_data=held_out,
                callbacks=[*self._callbacks(), clock],
            )

    def _global_batch_size(self) -> int:
        return self.workload.global_batch_size

    def _compile_args(self, model: keras.Model) -> dict[str, Any]:
        del model
        examples = self.workload.num_train_examples or 0
        return compile_arguments(self.workload, num_steps=self.epochs * max(1, examples // self._global_batch_size()))

    def _callbacks(self) -> list[Any]:
        return list(self.workload.callbacks()) if self.workload.callbacks else []


class DefaultTraining(PlainTraining):
    """`Model.fit` on the same model and data with Keras's defaults: batches of 32 and Adam's default learning rate.

    A model with a custom `train_step` keeps its optimizers, which have no defaults.
    """

    def _global_batch_size(self) -> int:
        return min(_DEFAULT_BATCH_SIZE, self.workload.num_train_examples or _DEFAULT_BATCH_SIZE)

    def _compile_args(self, model: keras.Model) -> dict[str, Any]:
        arguments = super()._compile_args(model)
        return arguments if has_own_train_step(model) else {**arguments, "optimizer": "adam"}

    def _callbacks(self) -> list[Any]:
        return []
