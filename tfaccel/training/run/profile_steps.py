"""Writes a trace of some optimizer steps for TensorBoard's profiler."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.run.step_range import StepRange

logger = logging.getLogger("tfaccel")


class ProfileSteps(keras.callbacks.Callback):
    """Profiles a range of steps. Graph calls begin and end at its limits.

    Args:
        steps: the optimizer steps to profile.
        folder: TensorBoard's directory; the trace is written into `plugins/profile` in it.
        batches_per_step: batches of an optimizer step.
        batches_before: batches that the run has trained on before this call to `train`.
        batches_in_epoch: how many of them belong to the epoch that is resumed.
    """

    tfaccel_windows = True

    def __init__(
        self, steps: StepRange, folder: Path, *, batches_per_step: int, batches_before: int, batches_in_epoch: int = 0
    ) -> None:
        super().__init__()
        self._steps, self._folder = steps, folder
        self._first = (steps.first - 1) * batches_per_step  # batches before the range
        self._last = steps.last * batches_per_step
        self._done = batches_before - batches_in_epoch  # before this epoch
        self._in_epoch = 0
        self._runs = False
        if self._first < batches_before:
            logger.warning(
                f"Steps {steps.first} to {steps.last} are not profiled: the run has trained beyond step "
                f"{steps.first} before it was resumed."
            )

    def steps_to_boundary(self, done: int) -> int | None:
        """Batches until the range begins or ends, after `done` batches of this epoch."""
        ahead = [bound - self._done - done for bound in (self._first, self._last)]
        return next((batches for batches in ahead if batches > 0), None)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Starts the profiler before the first step."""
        if self._done + batch == self._first:
            tf.profiler.experimental.start(str(self._folder))
            self._runs = True

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Writes the trace after the last step."""
        self._in_epoch = batch + 1
        if self._runs and self._done + self._in_epoch >= self._last:
            self.close()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts the epoch's batches."""
        self._done += self._in_epoch
        self._in_epoch = 0

    def on_train_end(self, logs: Any = None) -> None:
        """Writes the trace if training ended before the last step."""
        self.close()

    def close(self) -> None:
        """Stops the profiler if it runs."""
        if self._runs:
            self._runs = False
            tf.profiler.experimental.stop()
            logger.info(f"A trace of the profiled steps is in {self._folder}: tensorboard --logdir={self._folder}")
