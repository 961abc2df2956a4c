"""The callbacks of `train`: metrics as JSON lines, and step times.

Their batch hooks are called once per window (`tfaccel_windows`), not once per batch.
"""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np

from tfaccel.training.run.run_dir import LEFT_OUT, PERFORMANCE, WORKERS, RunDir
from tfaccel.training.run.utilization import Utilization
from tfaccel.training.steps.left_out import LeftOutCount


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
        left_out: knows how many batches of the epoch were left out; None if none may be.
    """

    def __init__(
        self,
        run_dir: RunDir,
        steps_of_epoch: int | None,
        utilization: Utilization | None = None,
        left_out: LeftOutCount | None = None,
    ) -> None:
        super().__init__()
        self._left_out = left_out
        self._utilization = utilization
        self._run_dir = run_dir
        self._steps = steps_of_epoch
        self._started = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the epoch's metrics."""
        seconds = time.perf_counter() - self._started
        row = {"epoch": epoch, "step": None if self._steps is None else (epoch + 1) * self._steps}
        left_out = {} if self._left_out is None else {LEFT_OUT: self._left_out.of_epoch}
        metrics = {k: float(v) for k, v in (logs or {}).items()}
        known = self._utilization.of_epoch if self._utilization is not None else None
        performance: dict[str, Any] = {} if known is None else {PERFORMANCE: known.to_json()}
        if self._utilization is not None and self._utilization.workers:
            performance[WORKERS] = [one.to_json() for one in self._utilization.workers]
        self._run_dir.add_row({**row, "seconds": round(seconds, 3), **metrics, **left_out, **performance})
