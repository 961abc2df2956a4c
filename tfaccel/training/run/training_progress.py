"""The progress bar of `train`."""

from __future__ import annotations

import sys
import time
from typing import Any

import keras
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class TrainingProgress(keras.callbacks.Callback):
    """A progress bar with examples per second and time left; without a terminal, one line per epoch."""

    tfaccel_windows = True

    def __init__(self, *, epochs: int, first_epoch: int, steps_of_epoch: int | None, examples_per_step: int) -> None:
        super().__init__()
        self._epochs = epochs
        self._steps = steps_of_epoch
        self._examples = examples_per_step
        console = Console(file=sys.stderr)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
            console=console,
            disable=not console.is_terminal,
        )
        total = None if steps_of_epoch is None else (epochs - first_epoch) * steps_of_epoch
        self._task = self._progress.add_task("training", total=total, speed="", loss="")
        self._console = console
        self._epoch = first_epoch
        self._window = (0, 0.0)

    def on_train_begin(self, logs: Any = None) -> None:
        """Shows the bar."""
        self._progress.start()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Records when the window begins."""
        self._window = (batch, time.perf_counter())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Advances the bar by a window."""
        steps, seconds = batch + 1 - self._window[0], time.perf_counter() - self._window[1]
        loss = (logs or {}).get("loss")
        self._progress.update(
            self._task,
            advance=steps,
            description=f"epoch {self._epoch + 1}/{self._epochs}",
            speed=f"{steps * self._examples / max(seconds, 1e-9):,.0f} examples/s",
            loss="" if loss is None else f"loss {float(loss):.4f}",
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Prints the epoch's metrics."""
        self._epoch = epoch + 1
        values = "  ".join(f"{name} {float(value):.4f}" for name, value in (logs or {}).items())
        text = f"epoch {epoch + 1}/{self._epochs}  {values}"
        self._console.print(text, highlight=False, soft_wrap=not self._console.is_terminal)

    def on_train_end(self, logs: Any = None) -> None:
        """Removes the bar."""
        self._progress.stop()

    def close(self) -> None:
        """Removes the bar, also after an error."""
        self._progress.stop()
