"""The callbacks of `train`: metrics as JSON lines, step times, and checkpoints.

Their batch hooks are called once per window (`tfaccel_windows`), not once per batch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from tfaccel.errors import RunDirError
from tfaccel.training.epoch_loop import non_finite_weight
from tfaccel.training.run.callback_state import callback_state, restore_callback
from tfaccel.training.run.checkpoint import bad_weight, read_state
from tfaccel.training.run.checkpoint_writer import CheckpointWriter
from tfaccel.training.run.run_dir import LEFT_OUT, PERFORMANCE, WORKERS, RunDir
from tfaccel.training.run.utilization import Utilization
from tfaccel.training.steps.engine import Engine
from tfaccel.training.steps.left_out_count import LeftOutCount

_MAX_TIME_FOR_CHECKPOINTS = 0.02  # fraction of the training time


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


class Checkpoints(keras.callbacks.Callback):
    """Saves and restores the whole training state. Checkpoints are written in a thread, while training goes on.

    Args:
        run_dir, engine: the run directory to save to, and the engine whose state is saved.
        others: callbacks whose state (best value, patience) is saved too; this callback must come after them.
        interval: steps between checkpoints; None for one after each epoch, or after several if epochs are so short that
            saving would take more than 2 % of the time. The first and the last epoch always end with one.
        restored: arrays and position of the checkpoint to continue from.
        of_run: further values for the position of each checkpoint, such as the run's `num_steps`.
        keep: number of the newest checkpoints to keep. The best one after an epoch, by `val_loss`, or by `loss` without
            validation data, is kept as well.
    """

    tfaccel_windows = True

    def __init__(
        self,
        run_dir: RunDir,
        engine: Engine,
        others: list[keras.callbacks.Callback],
        *,
        interval: int | None,
        restored: tuple[dict[str, Any], dict[str, Any]] | None,
        of_run: Mapping[str, Any],
        keep: int = 2,
    ) -> None:
        super().__init__()
        self._interval = interval
        self._monitored: dict[str, Any] | None = None
        self._of_run = of_run
        self._run_dir = run_dir
        self._engine = engine
        self._replicas = engine.replicas
        self._others = others
        self._restored = restored
        position = restored[1] if restored else {"epoch": 0, "step_in_epoch": 0, "step": 0}
        self._epoch, self._first_step = position["epoch"], position["step_in_epoch"]
        self._step = position["step"]
        self._last = 0
        self._trained = self._epoch, self._first_step  # the epoch and the number of its steps, after the last step
        self._saved = self._position if restored else None  # the position of the newest checkpoint
        self._due_at = 0.0  # clock time from which the next checkpoint after an epoch is due
        self._writer = CheckpointWriter(run_dir.checkpoints, keep=keep)

    @property
    def step(self) -> int:
        """Batches trained since the run began."""
        return self._step + self._last

    @property
    def _position(self) -> tuple[int, int, int]:
        """Epoch, step within it, and step."""
        return self._epoch, self._first_step + self._last, self.step

    def save_now(self) -> int:
        """Saves the current state, unless the newest checkpoint holds it; returns its step. All workers call it.

        Raises:
            RunDirError: if it cannot be written.
        """
        if self._saved != self._position:
            self._save(*self._position)
        self._writer.wait()
        if self._run_dir.writes and not (self._run_dir.checkpoints / f"step_{self.step:010d}").exists():
            raise RunDirError(
                f"Training was stopped after step {self.step}, and its state could not be saved in "
                f'{self._run_dir.checkpoints}. Free space, and resume from the newest checkpoint: resume="auto" '
                "(--resume=auto)."
            )
        return self.step

    def close(self) -> None:
        """Waits until the newest checkpoint is written."""
        self._writer.close()

    def steps_to_boundary(self, done: int) -> int | None:
        """Steps until the next checkpoint is due, `done` steps after this epoch started (or resumed)."""
        return None if self._interval is None else self._interval - (self._step + done) % self._interval

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores the state of the other callbacks, which they reset when training begins."""
        if self._restored is not None:
            arrays, position = self._restored
            for index, callback in enumerate(self._others):
                restore_callback(callback, position["callbacks"][index], arrays, f"callback/{index}")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves in the middle of an epoch."""
        self._last = batch + 1
        self._trained = self._epoch, self._first_step + self._last
        if self._interval and (self._step + self._last) % self._interval == 0:
            self._save(*self._position)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves after an epoch; a resumed run starts with the next one."""
        self._step += self._last
        self._epoch, self._first_step, self._last = epoch + 1, 0, 0
        self._monitored = _monitored(logs or {})
        if self._interval or self._is_last(epoch) or self._replicas.same_on_all_workers(self._is_due):
            started = time.perf_counter()
            self._save(self._epoch, 0, self._step)
            ended = time.perf_counter()
            self._due_at = ended + (ended - started) / _MAX_TIME_FOR_CHECKPOINTS

    def _is_last(self, epoch: int) -> bool:
        return bool(self.model.stop_training) or epoch + 1 == self.params["epochs"]

    def _is_due(self) -> int:
        return int(time.perf_counter() >= self._due_at)

    def _save(self, epoch: int, step_in_epoch: int, step: int) -> None:
        arrays = read_state(self.model, self._replicas)
        weight = bad_weight(self.model, arrays)
        if weight is not None:
            raise non_finite_weight(weight, *self._trained)
        states = []
        for index, callback in enumerate(self._others):
            state, more = callback_state(callback, f"callback/{index}")
            states.append(state)
            arrays.update(more)
        position = {
            "epoch": epoch,
            "step_in_epoch": step_in_epoch,
            "step": step,
            **self._of_run,
            "callbacks": states,
            LEFT_OUT: self._engine.left_out.of_epoch if step_in_epoch else 0,
            "stopped": step_in_epoch == 0 and bool(self.model.stop_training),
            "monitored": self._monitored if step_in_epoch == 0 else None,
        }
        if self._run_dir.writes:
            self._writer.write(arrays, position)
        self._saved = epoch, step_in_epoch, step


def _monitored(logs: Mapping[str, Any]) -> dict[str, Any] | None:
    """What decides which checkpoint is the best."""
    name = "val_loss" if "val_loss" in logs else "loss"
    return {"name": name, "direction": "min", "value": float(logs[name])} if name in logs else None
