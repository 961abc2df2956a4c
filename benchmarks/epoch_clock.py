"""Times of the epochs inside a training call: when each begins, and when its last batch ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras

from tfaccel.benchmarks.measurement import Window


class EpochClock:
    """Records when epochs begin and when their last batches end.

    An epoch begins with its first batch. Its tail is the time from its last batch to the first batch of the next epoch,
    or to the end of the call.
    """

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._last_ends: list[float] = []
        self._first_batch_is_next = False

    def epoch_begins(self) -> None:
        """Call it before the first batch of an epoch."""
        self._first_batch_is_next = True

    def batches_begin(self) -> None:
        """Call it before one batch, or several in one call, run."""
        if self._first_batch_is_next:
            self._begins.append(time.perf_counter())
            self._last_ends.append(self._begins[-1])
            self._first_batch_is_next = False

    def batches_end(self) -> None:
        """Call it after those batches."""
        self._last_ends[-1] = time.perf_counter()

    def time(self, call: Callable[[], float]) -> Window:
        """Times a call that records its epochs here and returns its final loss."""
        self._begins, self._last_ends = [], []
        cpu_seconds, started = time.process_time(), time.perf_counter()
        loss = call()
        ended = time.perf_counter()
        cpu_seconds = time.process_time() - cpu_seconds
        next_begins = [*self._begins[1:], ended]
        return Window(
            wall_seconds=ended - started,
            cpu_seconds=cpu_seconds,
            epoch_seconds=tuple(n - b for b, n in zip(self._begins, next_begins, strict=True)),
            tail_seconds=tuple(n - e for e, n in zip(self._last_ends, next_begins, strict=True)),
            loss=loss,
        )


class WindowTimes(keras.callbacks.Callback):
    """Records epochs and windows of `tfaccel.fit`."""

    tfaccel_windows = True

    def __init__(self, clock: EpochClock) -> None:
        super().__init__()
        self._clock = clock

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._clock.epoch_begins()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._clock.batches_begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._clock.batches_end()


class StepTimes(keras.callbacks.Callback):
    """Records epochs and steps of `Model.fit`, by wrapping the model's train function.

    A callback with batch hooks would make `Model.fit` wait at each batch, which it does not do by default.
    """

    def __init__(self, clock: EpochClock) -> None:
        super().__init__()
        self._clock = clock

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._clock.epoch_begins()

    def wrap(self, train_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The train function with its calls recorded."""

        def timed(iterator: Any) -> Any:
            self._clock.batches_begin()
            logs = train_function(iterator)
            self._clock.batches_end()
            return logs

        return timed
