"""The callback that saves checkpoints while training goes on, and restores the callbacks' state from one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from tfaccel.errors import RunDirError
from tfaccel.training.epochs import non_finite_weight
from tfaccel.training.run.callback_state import Arrays, callback_states, cut_csv_files, restore_callbacks
from tfaccel.training.run.changed_accumulation import state_in_parts
from tfaccel.training.run.checkpoint import bad_weight, read_state, write_state
from tfaccel.training.run.checkpoint_writer import CheckpointWriter
from tfaccel.training.run.outside_variables import OUTSIDE, OutsideVariables
from tfaccel.training.run.run_dir import LEFT_OUT, RunDir
from tfaccel.training.steps.engine import Engine

_MAX_TIME_FOR_CHECKPOINTS = 0.02  # fraction of the training time
NOT_OF_MODEL = ("callback/", "data/", OUTSIDE)  # begin the names of arrays that `read_state` does not return

Restored = tuple[dict[str, Any], dict[str, Any]]  # arrays and position of the checkpoint to continue from
PlaceOfData = Callable[[int], tuple[dict[str, Any], Arrays]]


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """When checkpoints are saved, and what belongs to each.

    Attributes:
        interval: steps between checkpoints; None for one after each epoch, or after several if epochs are so short that
            saving would take more than 2 % of the time. The first and the last epoch always end with one.
        keep: number of the newest checkpoints to keep. The best one after an epoch, by `val_loss`, or by `loss` without
            validation data, is kept as well.
        first_epoch: of a run that has no checkpoint yet.
        at_begin: whether such a run begins with a checkpoint.
        num_steps, accumulation_steps: optimizer steps of the run, and batches in each, saved with each checkpoint.
        batch_spec: specs of a batch, for which a resumed run's step is traced to find variables outside of the model.
        parts: see `restore_model`.
        place_of_data: returns where the next batch is, after so many steps of the epoch: JSON values, and arrays.
    """

    interval: int | None = None
    keep: int = 2
    first_epoch: int = 0
    at_begin: bool = False
    num_steps: int | None = None
    accumulation_steps: int = 1
    batch_spec: Any = None
    parts: int = 1
    place_of_data: PlaceOfData | None = None


def restore_model(engine: Engine, restored: Restored | None, *, parts: int = 1) -> None:
    """Puts an engine's model back where a checkpoint was; does nothing without one.

    Args:
        engine, restored: the engine, and the checkpoint.
        parts: how many batches each batch of the checkpoint is split into from now on.
    """
    if restored is None:
        return
    arrays, position = restored
    own = {name: array for name, array in arrays.items() if not name.startswith(NOT_OF_MODEL)}
    own = state_in_parts(own, engine.model, parts, num_replicas=engine.replicas.num_replicas)
    write_state(engine.model, engine.replicas, own)
    engine.left_out.begin_epoch(position.get(LEFT_OUT, 0))


class Checkpoints(keras.callbacks.Callback):
    """Saves and restores the whole training state. Checkpoints are written in a thread, while training goes on.

    Args:
        run_dir, engine: the run directory to save to, and the engine whose state is saved.
        others: callbacks whose state (best value, patience) is saved too; this callback must come after them.
        options: when to save.
        restored: arrays and position of the checkpoint to continue from.
    """

    tfaccel_windows = True

    def __init__(
        self,
        run_dir: RunDir,
        engine: Engine,
        others: list[keras.callbacks.Callback],
        options: CheckpointOptions,
        *,
        restored: Restored | None,
    ) -> None:
        super().__init__()
        self._options, self._interval = options, options.interval
        self._monitored: dict[str, Any] | None = None
        self._run_dir = run_dir
        self._engine = engine
        self._replicas = engine.replicas
        self._others = others
        self._outside = OutsideVariables(engine)
        self._restored = restored
        if restored is not None and engine.replicas.is_chief:
            cut_csv_files(others, restored[1]["callbacks"])
        position = restored[1] if restored else {"epoch": options.first_epoch, "step_in_epoch": 0, "step": 0}
        self._epoch, self._in_epoch = position["epoch"], position["step_in_epoch"]
        self._before = position["step"] - self._in_epoch  # steps before this epoch
        self._trained = self._epoch, self._in_epoch  # the epoch and the number of its steps, after the last step
        self._saved = self._position if restored else None  # the position of the newest checkpoint
        self._due_at = 0.0  # clock time from which the next checkpoint after an epoch is due
        self._writer = CheckpointWriter(
            run_dir.checkpoints, keep=options.keep, resume_by=run_dir.resume_by, run=run_dir.identity
        )

    @property
    def step(self) -> int:
        """Batches trained since the run began."""
        return self._before + self._in_epoch

    @property
    def _position(self) -> tuple[int, int, int]:
        """Epoch, step within it, and step."""
        return self._epoch, self._in_epoch, self.step

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
                f"{self._run_dir.checkpoints}. Free space, and resume from the newest checkpoint: "
                f"{self._run_dir.resume_by}."
            )
        return self.step

    def close(self) -> None:
        """Waits until the newest checkpoint is written."""
        self._writer.close()

    def steps_to_boundary(self, done: int) -> int | None:
        """Steps until the next checkpoint is due, after `done` steps of this epoch."""
        return None if self._interval is None else self._interval - (self._before + done) % self._interval

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores the state of the other callbacks, which they reset when training begins, and what they may move."""
        if self._restored is not None:
            self._restore_callbacks()
        elif self._options.at_begin:
            self._save(*self._position)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Takes back what callbacks do at the begin of a resumed epoch, which they had done before the checkpoint."""
        if self._restored is not None and self._saved == self._position and self._in_epoch:
            restore_model(self._engine, self._restored, parts=self._options.parts)
            self._restore_callbacks()

    def _restore_callbacks(self) -> None:
        if self._restored is not None:
            arrays, position = self._restored
            restore_callbacks(self._others, position["callbacks"], arrays)
            self._outside.restore(arrays, self._options.batch_spec)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves in the middle of an epoch."""
        self._in_epoch = batch + 1
        self._outside.note()
        self._trained = self._epoch, self._in_epoch
        if self._interval and self.step % self._interval == 0:
            self._save(*self._position)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves after an epoch; a resumed run starts with the next one."""
        self._before, self._in_epoch = self.step, 0
        self._epoch = epoch + 1
        self._monitored = _monitored(logs or {})
        if self._interval or self._is_last(epoch) or self._replicas.same_on_all_workers(self._is_due):
            started = time.perf_counter()
            self._save(*self._position)
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
        states, more = callback_states(self._others)
        arrays.update(more)
        arrays.update(self._outside.arrays())
        position: dict[str, Any] = {
            "epoch": epoch,
            "step_in_epoch": step_in_epoch,
            "step": step,
            "num_steps": self._options.num_steps,
            "accumulation_steps": self._options.accumulation_steps,
            "callbacks": states,
            LEFT_OUT: self._engine.left_out.of_epoch if step_in_epoch else 0,
            "stopped": step_in_epoch == 0 and bool(self.model.stop_training),
            "monitored": self._monitored if step_in_epoch == 0 else None,
        }
        if self._run_dir.writes:
            self._run_dir.check_held()
            if self._options.place_of_data is not None:
                position["data"], more = self._options.place_of_data(step_in_epoch)
                arrays.update({f"data/{name}": array for name, array in more.items()})
            self._writer.write(arrays, position)
        self._saved = epoch, step_in_epoch, step


def _monitored(logs: Mapping[str, Any]) -> dict[str, Any] | None:
    """What decides which checkpoint is the best."""
    name = "val_loss" if "val_loss" in logs else "loss"
    return {"name": name, "direction": "min", "value": float(logs[name])} if name in logs else None
