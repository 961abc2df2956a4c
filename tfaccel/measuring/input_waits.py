"""How long a training step waits for its batch."""

from __future__ import annotations

import time
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.sources import IteratorFeed, IteratorSource
from tfaccel.hardware.detect import detect_hardware
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.workload import Workload
from tfaccel.training.compiled_model import compiled_model, engine_options
from tfaccel.training.engine import Engine, engine_of
from tfaccel.training.fit import callbacks_of, fit, run_epochs
from tfaccel.training.replicas import Replicas
from tfaccel.training.runtime import Runtime
from tfaccel.training.validation import Validation, validation_of
from tfaccel.training.workload_source import WorkloadSource


def input_waits(work: Workload, *, repetitions: int) -> tuple[float, ...]:
    """The part of the step time in which training waits for its data, once for each repetition.

    A workload is trained as `tfaccel.train` does, and again on one batch that is there already. The wait of an epoch is
    what goes by before its first batch is there, and what its steps take longer than those on the ready batch. Below
    nothing, by noise, counts as nothing.

    Args:
        work: what is trained, by the first plan of the rules.
        repetitions: epochs that are timed, after one that traces and compiles.
    """
    plan, epochs = default_plan(detect_hardware(), work), repetitions + 1
    with Runtime(plan, seed=0) as runtime:
        with runtime.strategy.scope():
            model = compiled_model(work, plan)
        ready = work.train_data(plan.global_batch_size, seed=0, epoch=0).take(1).cache()
        fit(model, ready, verbose=0)  # builds the model
        engine = engine_of(model, engine_options(plan))
        own = _TimedSource(work, plan, Replicas(runtime.strategy), seed=0, epochs=epochs)
        steps_of_own = _seconds_of_steps(engine, own, validation_of(work, plan, num_passes=epochs), epochs)
        num_batches = own.num_batches or 1
        ready = ready.repeat(num_batches).prefetch(tf.data.AUTOTUNE)
        alone = IteratorSource(ready, num_batches=num_batches, num_epochs=epochs)
        steps_alone = _seconds_of_steps(engine, alone, None, epochs)
    times = zip(own.seconds_before, steps_of_own, steps_alone, strict=True)
    return tuple((before + max(0.0, ours - least)) / (before + ours) for before, ours, least in times)[1:]


def _seconds_of_steps(
    engine: Engine, source: IteratorSource, validation: Validation | None, epochs: int
) -> list[float]:
    """What the steps of each epoch take."""
    clock = _StepClock()
    container = callbacks_of([clock], engine, source, verbose=0, epochs=epochs)
    try:
        run_epochs(engine, source, container, validation, epochs=epochs, initial_epoch=0)
    finally:
        source.close()
        if validation is not None:
            validation.source.close()
    return clock.seconds


class _StepClock(keras.callbacks.Callback):
    """Sums up the time of each epoch's graph calls."""

    tfaccel_windows = True

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._began = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.seconds.append(0.0)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seconds[-1] += time.perf_counter() - self._began


class _TimedSource(WorkloadSource):
    """Notes how long each epoch waits for its first batch."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seconds_before: list[float] = []

    def feed(self) -> IteratorFeed:
        """The batches of the next epoch."""
        started = time.perf_counter()
        feed = super().feed()
        self.seconds_before.append(time.perf_counter() - started)
        return feed
