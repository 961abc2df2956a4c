"""The time that training steps wait for their batches."""

from __future__ import annotations

import contextlib
import copy
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.feeds import IteratorFeed
from tfaccel.hardware.detect import detect_hardware
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.workload import Workload
from tfaccel.training.run.session import Session
from tfaccel.training.run.workload_source import WorkloadSource
from tfaccel.training.runtime import Runtime
from tfaccel.training.steps.engine import Engine

_MIN_SECONDS = 2.0
_MAX_EPOCHS = 1000


def input_waits(work: Workload, *, repetitions: int) -> tuple[float, ...]:
    """The fraction of the step time that training waits for data, once for each repetition.

    The workload is trained as by `tfaccel.train`. The graph records when each step finished and when the next batch was
    ready; the time between is waiting, and so is the time before the first batch of an epoch. A step that is slow
    because the input pipeline uses CPU time does not count as waiting.

    Args:
        work: the workload, trained with the rules' first plan.
        repetitions: number of groups that the epochs are divided into: at least one epoch each, and two seconds in
            total, after a first epoch that traces and compiles.
    """
    plan, epochs = default_plan(detect_hardware(), work), max(repetitions + 1, _MAX_EPOCHS)
    with Runtime(plan, seed=0) as runtime:
        made = Session(work, plan, runtime.strategy, seed=0, epochs=epochs, planned_epochs=epochs)
        with contextlib.closing(made) as session:
            clock = _WaitClock(session.engine, num_epochs=repetitions + 1)
            _watch_feeds(session.source, clock)
            session.train([clock])
    waited, total = (np.array_split(seconds[1:], repetitions) for seconds in (clock.waited, clock.total))
    return tuple(float(part.sum() / whole.sum()) for part, whole in zip(waited, total, strict=True))


class _WaitClock(keras.callbacks.Callback):
    """Sums the seconds spent waiting for batches, and all seconds of training, for each epoch.

    Args:
        engine: the engine whose training steps are timed; it must not have traced any yet.
        num_epochs: number of epochs after which training ends, once they have taken two seconds.
    """

    tfaccel_windows = True

    def __init__(self, engine: Engine, *, num_epochs: int) -> None:
        super().__init__()
        self._num_epochs = num_epochs
        self.waited: list[float] = []
        self.total: list[float] = []
        self._began = 0.0
        with tf.device("/CPU:0"):
            self._in_steps = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self._next_is_there: tf.Tensor | None = None
        steps = engine.get_steps("train")
        train = steps.train

        def timed(batches: Any, batch: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            before = set(graph.get_operations())
            logs = train(batches, batch)
            with tf.control_dependencies([op for op in graph.get_operations() if op not in before]):
                done = tf.timestamp()
            with tf.control_dependencies([done, self._next_is_there]):
                self._in_steps.assign_add(tf.timestamp() - done)
            return logs

        steps.train = timed  # type: ignore[method-assign]

    def watch(self, feed: IteratorFeed, seconds_before: float) -> None:
        """Begins an epoch, before which training waited `seconds_before`, and times its batches."""
        self.waited.append(seconds_before)
        self.total.append(seconds_before)
        batches = feed.batches
        feed.batches = copy.copy(batches)

        def fetch(arguments: Any, state: Any, step: tf.Tensor) -> tuple[Any, Any]:
            batch, state = batches.fetch(arguments, state, step)
            self._next_is_there = state[0].has_value() if state else tf.constant(True)  # arrays are always ready
            return batch, state

        object.__setattr__(feed.batches, "fetch", fetch)  # batches are frozen

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.total[-1] += time.perf_counter() - self._began
        self.waited[-1] += float(self._in_steps)
        self._in_steps.assign(0.0)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch + 1 >= self._num_epochs and sum(self.total[1:]) >= _MIN_SECONDS:
            self.model.stop_training = True


def _watch_feeds(source: WorkloadSource, clock: _WaitClock) -> None:
    """Reports each epoch, and the wait for its first batch, to the clock."""
    next_feed = source.feed

    def timed() -> IteratorFeed:
        started = time.perf_counter()
        feed: IteratorFeed = next_feed()
        clock.watch(feed, time.perf_counter() - started)
        return feed

    source.feed = timed  # type: ignore[method-assign]
