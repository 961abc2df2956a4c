"""The programs that the recipes' benchmark times: `tfaccel.train` by the rules' plan, and `Model.fit` with defaults."""

from __future__ import annotations

import abc
import functools
import os
import tempfile
import time
from typing import Any

import keras
import tensorflow as tf

from tfaccel.hardware.detect import detect_hardware
from tfaccel.measuring.measurement import Window
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.fit import fit
from tfaccel.training.runtime import Runtime
from tfaccel.training.train import train


class RecipeTraining(abc.ABC):
    """A recipe trained to its end, each run with another seed.

    Args:
        name: of the program.
        workload: the recipe's, made for `epochs`.
        epochs: passes over the data.

    Attributes:
        results: the final metrics of each run, the warm-up's first.
    """

    def __init__(self, name: str, workload: Workload, epochs: int) -> None:
        self.name = name
        self.workload = workload
        self.epochs = epochs
        self.num_steps = epochs * max(1, (workload.num_train_examples or 0) // workload.global_batch_size)
        self.results: list[dict[str, float]] = []

    def warm_up(self) -> float:
        """Trains for one epoch; returns the loss."""
        return float(self._trained(seed=0, epochs=1)["loss"])

    def run(self) -> Window:
        """Trains to the end and times it: building, tracing and compiling are part of what a user waits for."""
        cpu_seconds, started = time.process_time(), time.perf_counter()
        final = self._trained(seed=len(self.results), epochs=self.epochs)
        seconds = time.perf_counter() - started
        cpu_seconds = time.process_time() - cpu_seconds
        self.results.append(final)
        keras.backend.clear_session()
        return Window(wall_seconds=seconds, cpu_seconds=cpu_seconds, epoch_seconds=(seconds,), tail_seconds=(0.0,),
                      loss=float(final["loss"]))  # fmt: skip

    @abc.abstractmethod
    def _trained(self, *, seed: int, epochs: int) -> dict[str, float]:
        """Trains and returns the final metrics."""


class PlannedTraining(RecipeTraining):
    """`tfaccel.train` by the first plan of the rules, with its run directory and checkpoints."""

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan."""
        return default_plan(detect_hardware(), self.workload)

    def _trained(self, *, seed: int, epochs: int) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            run_dir = os.path.join(folder, "run")
            result = train(self.workload, self.plan, run_dir=run_dir, epochs=epochs, seed=seed, verbose=0)
            return result.final


class PlainTraining(RecipeTraining):
    """`Model.fit` with Keras's defaults on the same model and batches, which is all that it does."""

    def _trained(self, *, seed: int, epochs: int) -> dict[str, float]:
        work = self.workload
        with Runtime(Plan(strategy="none", devices=("CPU:0",), global_batch_size=work.global_batch_size), seed=seed):
            model = work.build_model()
            model.compile(**work.compile_args())
            passes = [work.train_data(work.global_batch_size, seed=seed, epoch=epoch) for epoch in range(epochs)]
            batches = functools.reduce(lambda all_before, one: all_before.concatenate(one), passes)
            validation = None if work.validation_data is None else work.validation_data(work.global_batch_size)
            history = model.fit(
                batches.prefetch(tf.data.AUTOTUNE), epochs=epochs, steps_per_epoch=int(passes[0].cardinality()),
                shuffle=False, verbose=0, validation_data=validation,
                callbacks=list(work.callbacks()) if work.callbacks else None,
            ).history  # fmt: skip
        last = {name: float(values[-1]) for name, values in history.items()}
        final = {name.removeprefix("val_"): value for name, value in last.items() if name.startswith("val_")}
        return final or last


def input_waits(work: Workload, *, repetitions: int) -> tuple[float, ...]:
    """The part of the step time in which the step waits for its batch, once for each repetition.

    An epoch on the workload's own batches is timed by turns with one on a single batch that is there already; what the
    former takes longer is the wait. Below nothing, by noise, counts as nothing.
    """
    plan = default_plan(detect_hardware(), work)
    with Runtime(plan, seed=0) as runtime:
        with runtime.strategy.scope():
            model = work.build_model()
            arguments: dict[str, Any] = {**work.compile_args(), "jit_compile": plan.jit_compile}
            model.compile(**arguments)
        pipelines = [work.train_data(plan.global_batch_size, seed=0, epoch=epoch) for epoch in range(repetitions + 1)]
        num_batches = int(pipelines[0].cardinality())
        ready = pipelines[0].take(1).cache().repeat(num_batches).prefetch(tf.data.AUTOTUNE)
        waits = []
        for pipeline in pipelines:
            own, alone = (_fit_seconds(model, batches) for batches in (pipeline.prefetch(tf.data.AUTOTUNE), ready))
            waits.append(max(0.0, 1.0 - alone / own))
    return tuple(waits[1:])


def _fit_seconds(model: keras.Model, batches: tf.data.Dataset) -> float:
    started = time.perf_counter()
    fit(model, batches, epochs=1, verbose=0, shuffle=False)
    return time.perf_counter() - started
