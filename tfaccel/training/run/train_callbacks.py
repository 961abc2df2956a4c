"""The callbacks of `train`: metrics as JSON lines, step times, and a progress bar.

Their batch hooks are called once per window (`tfaccel_windows`), not once per batch.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import keras
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tfaccel.training.run.run_dir import PERFORMANCE, RunDir
from tfaccel.training.run.utilization import Utilization


class StepTimes(keras.callbacks.Callback):
    """Durations of the graph calls; the first, which traces and compiles, is recorded separately."""

    tfaccel_windows = True

    def __init__(self) -> None:
        super().__init__()
        self.first_seconds = 0.0
        self.windows: list[tuple[int, float]] = []
        self._begin = (0, 0.0)
        self._first = True
        self._first_window = (0, 0.0)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Records when a window begins."""
        self._begin = (batch, time.perf_counter())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Records how long the window took."""
        seconds = time.perf_counter() - self._begin[1]
        if self._first:
            self._first, self.first_seconds = False, seconds
            self._first_window = (batch + 1 - self._begin[0], seconds)
        else:
            self.windows.append((batch + 1 - self._begin[0], seconds))

    def step_seconds(self) -> dict[str, float]:
        """Median and 95th percentile of the step time, with each window weighted by its number of steps."""
        if not self.windows:
            seconds = self.first_seconds / max(1, self._first_window[0])
            return {"median": seconds, "p95": seconds}
        steps = np.repeat([s / n for n, s in self.windows], [n for n, _ in self.windows])
        return {"median": float(np.median(steps)), "p95": float(np.percentile(steps, 95))}

    def steps_per_second(self) -> float:
        """Steps per second, excluding the first graph call if there are others; 0 if nothing was trained."""
        windows = self.windows or [self._first_window]
        seconds = sum(s for _, s in windows)
        return sum(n for n, _ in windows) / seconds if seconds else 0.0


class MetricLines(keras.callbacks.Callback):
    """Writes one line of `metrics.jsonl` per epoch.

    Args:
        run_dir: the run directory.
        steps_of_epoch: batches of an epoch; None if unknown.
        utilization: a callback before this one, which knows the epoch's performance; None if nothing does.
    """

    def __init__(self, run_dir: RunDir, steps_of_epoch: int | None, utilization: Utilization | None = None) -> None:
        super().__init__()
        self._utilization = utilization
        self._run_dir = run_dir
        self._steps = steps_of_epoch
        self._started = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the epoch's metrics."""
        seconds = time.perf_counter() - self._started
        row = {"epoch": epoch, "step": None if self._steps is None else (epoch + 1) * self._steps}
        metrics = {k: float(v) for k, v in (logs or {}).items()}
        known = self._utilization.of_epoch if self._utilization is not None else None
        performance = {} if known is None else {PERFORMANCE: known.to_json()}
        self._run_dir.add_row({**row, "seconds": round(seconds, 3), **metrics, **performance})


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
        self._console.print(f"epoch {epoch + 1}/{self._epochs}  {values}", highlight=False, soft_wrap=True)

    def on_train_end(self, logs: Any = None) -> None:
        """Removes the bar."""
        self._progress.stop()

    def close(self) -> None:
        """Removes the bar, also after an error."""
        self._progress.stop()
