"""The callbacks of `train` that show and write what it does: step times, metrics, progress, a profile, TensorBoard.

Their batch hooks are called once per window (`tfaccel_windows`), not once per batch.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tfaccel.graph_function import graph_function
from tfaccel.training.run.run_dir import LEFT_OUT, PERFORMANCE, WORKERS, RunDir
from tfaccel.training.run.run_options import StepRange
from tfaccel.training.run.utilization import BATCH_HOOKS, Utilization
from tfaccel.training.steps.left_out import LeftOutCount
from tfaccel.training.steps.model_parts import get_optimizers, stepping_optimizers

logger = logging.getLogger("tfaccel")


class StepTimes(keras.callbacks.Callback):
    """Durations of the graph calls; the first, which traces and compiles, is recorded separately."""

    tfaccel_windows = True
    tfaccel_live = (*BATCH_HOOKS, "on_epoch_end")

    def __init__(self) -> None:
        super().__init__()
        self.first_seconds = 0.0
        self.first_ended = 0.0  # by `time.perf_counter`
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
            self._first, self.first_seconds, self.first_ended = False, seconds, time.perf_counter()
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
        utilization: a callback before this one, which knows the epoch's performance; None if nothing does.
        left_out: knows how many batches of the epoch were left out; None if none may be.
    """

    tfaccel_windows = True

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
        self._in_epoch: int | None = None  # steps of the epoch, which may end early
        self._started = time.perf_counter()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Counts anew."""
        self._in_epoch = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts the steps."""
        self._in_epoch = batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the epoch's metrics."""
        seconds = time.perf_counter() - self._started
        step = None if self._steps is None else epoch * self._steps + (self._in_epoch or self._steps)
        row = {"epoch": epoch, "step": step}
        left_out = {} if self._left_out is None else {LEFT_OUT: self._left_out.of_epoch}
        metrics = {k: float(v) for k, v in (logs or {}).items()}
        known = self._utilization.of_epoch if self._utilization is not None else None
        performance: dict[str, Any] = {} if known is None else {PERFORMANCE: known.to_json()}
        if self._utilization is not None and self._utilization.workers:
            performance[WORKERS] = [one.to_json() for one in self._utilization.workers]
        self._run_dir.add_row({**row, "seconds": round(seconds, 3), **metrics, **left_out, **performance})


class TrainingProgress(keras.callbacks.Callback):
    """A progress bar with examples per second and time left; without a terminal, one line per epoch."""

    tfaccel_windows = True
    tfaccel_live = BATCH_HOOKS

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


class ProfileSteps(keras.callbacks.Callback):
    """Profiles a range of steps. Graph calls begin and end at its limits.

    Args:
        folder: TensorBoard's directory; the trace is written into `plugins/profile` in it.
        batches_before: batches that the run has trained on before this call to `train`.
        batches_in_epoch: how many of them belong to the epoch that is resumed.
    """

    tfaccel_windows = True
    tfaccel_live = (*BATCH_HOOKS, "on_epoch_end")

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


class TensorBoardScalars(keras.callbacks.Callback):
    """Writes `epoch_NAME` for each metric, and the learning rates, into `train` and `validation` folders.

    The names are those of `keras.callbacks.TensorBoard`, at a fraction of its cost: writing a scalar with TensorFlow's
    summary operations takes a millisecond, and evaluating a schedule eagerly several. One event for all scalars of an
    epoch, and a traced function for the rates, avoid this.

    The epoch's performance is in `train` too, as `performance/NAME`.

    Args:
        utilization: a callback before this one, which knows the epoch's performance.
    """

    def __init__(self, folder: Path, utilization: Utilization) -> None:
        super().__init__()
        self._utilization = utilization
        self._folder = folder
        self._writers: dict[str, EventFileWriter] = {}
        self._rates: Any = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes the epoch's metrics."""
        values = {name: float(value) for name, value in (logs or {}).items()}
        held_out = {name.removeprefix("val_"): value for name, value in values.items() if name.startswith("val_")}
        trained = {name: value for name, value in values.items() if not name.startswith("val_")}
        performance = self._utilization.of_epoch
        scalars = {} if performance is None else performance.scalars()
        tags = {f"epoch_{name}": value for name, value in (trained | self._learning_rates()).items()}
        self._write("train", epoch, tags | {f"performance/{name}": value for name, value in scalars.items()})
        self._write("validation", epoch, {f"epoch_{name}": value for name, value in held_out.items()})

    def on_train_end(self, logs: Any = None) -> None:
        """Closes the files."""
        self.close()

    def close(self) -> None:
        """Closes the files, also after an error: each has a thread that writes."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _write(self, name: str, epoch: int, values: dict[str, float]) -> None:
        if not values:
            return
        if name not in self._writers:
            self._writers[name] = EventFileWriter(str(self._folder / name))
        scalars = [Summary.Value(tag=key, simple_value=value) for key, value in values.items()]
        self._writers[name].add_event(Event(wall_time=time.time(), step=epoch, summary=Summary(value=scalars)))

    def _learning_rates(self) -> dict[str, float]:
        optimizers = [inner for outer in get_optimizers(self.model).values() for inner in stepping_optimizers(outer)]
        if self._rates is None:
            rates = lambda: [tf.convert_to_tensor(o.learning_rate) for o in optimizers]  # noqa: E731
            self._rates = graph_function(rates, autograph=True)
        names = ["learning_rate"] if len(optimizers) == 1 else [f"learning_rate_{o.name}" for o in optimizers]
        return {name: float(rate) for name, rate in zip(names, self._rates(), strict=True)}
