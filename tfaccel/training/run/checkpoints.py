"""The callback that saves checkpoints while training goes on, in a thread, and restores what they hold."""

from __future__ import annotations

import logging
import re
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import RunDirError, WorkloadError
from tfaccel.training.epochs import non_finite_weight
from tfaccel.training.run.changed_run import state_in_parts
from tfaccel.training.run.checkpoint import (
    Arrays,
    bad_weight,
    read_state,
    write_state,
)
from tfaccel.training.run.checkpoint_files import save_checkpoint
from tfaccel.training.run.python_state import (
    CallbackStates,
    cut_csv_files,
    random_states,
    set_random_states,
    with_prefix,
    without_prefix,
)
from tfaccel.training.run.remote_run import StoreError
from tfaccel.training.run.run_dir import LEFT_OUT, RESUME_BY_ARGUMENT, RunDir, RunIdentity
from tfaccel.training.steps.engine import Engine
from tfaccel.training.steps.step_graphs import OnUnsavedState

OUTSIDE = "outside/"  # begins the names of their arrays
_LARGE_BYTES = 1 << 20
_REPLICA = "/replica_"

logger = logging.getLogger("tfaccel")

_CHOICE = (
    "The training cannot be resumed exactly. {}. Or choose: tfaccel.Resume(..., state='restart') to begin that state "
    "anew when training is resumed."
)
_WARNING = "If this run is stopped and resumed, its results will differ from those without the stop. {}."
_EAGER = (
    "The model was compiled with run_eagerly=True, so its steps are not examined for a state that no checkpoint holds, "
    "such as that of `tf.random.normal`."
)
EXACT, RESTART = STATE_MODES = ("exact", "restart")  # what becomes of a state that no checkpoint holds
_MAX_TIME_FOR_CHECKPOINTS = 0.02  # fraction of the training time
RANDOM = "random"  # and a slash: begins the names of the states of global random numbers
NOT_OF_MODEL = ("callback/", "data/", f"{RANDOM}/", OUTSIDE)  # begin what `read_state` does not return
Restored = tuple[dict[str, Any], dict[str, Any]]  # arrays and position of the checkpoint to continue from
PlaceOfData = Callable[[int], tuple[dict[str, Any], Arrays]]
MAX_FAILURES = 3


class OutsideVariables:
    """Variables that an engine's training steps read and that belong to no part of the model.

    A closure, a loss or a regularizer may hold such a variable, which a callback moves from epoch to epoch. Only the
    traced steps know it. Large ones are saved only if something has changed them.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._num_graphs = 0
        self._found: dict[str, tf.Variable] = {}
        self._as_found: dict[str, int] = {}  # checksums of large ones

    def note(self) -> None:
        """Takes note of the variables that the steps traced so far read."""
        if self._engine.num_graphs("train") != self._num_graphs:
            self._num_graphs = self._engine.num_graphs("train")
            self._add(self._engine.outside_variables())

    def arrays(self) -> dict[str, np.ndarray]:
        """Their values, by name."""
        self.note()
        values = {name: variable.numpy() for name, variable in self._found.items()}
        return {
            f"{OUTSIDE}{name}": value
            for name, value in values.items()
            if value.nbytes <= _LARGE_BYTES or zlib.crc32(value.tobytes()) != self._as_found[name]
        }

    def restore(self, arrays: dict[str, np.ndarray], batch_spec: Any) -> None:
        """Restores what `arrays` returned, once the callbacks have begun and before the first step is traced."""
        saved = {name.removeprefix(OUTSIDE): array for name, array in arrays.items() if name.startswith(OUTSIDE)}
        if not saved:
            return
        if not self._found:
            self._add(self._engine.outside_variables(batch_spec))
        bases = {_base(name) for name in self._found}
        odd = next((name for name in saved if _base(name) not in bases), None)
        for name, variable in self._found.items():
            value = saved.get(name, saved.get(_base(name)))
            if value is not None and tuple(value.shape) == tuple(variable.shape):
                variable.assign(value)
            elif value is not None:
                odd = odd or name
        if odd is not None:
            raise RunDirError(
                f"The checkpoint belongs to another script: its training step read the variable {odd!r} of shape "
                f"{tuple(saved[odd].shape)}, which is no part of the model, and this one reads none such. Create it as "
                "before, or start over in a new directory."
            )

    def _add(self, variables: list[tf.Variable]) -> None:
        known = {id(variable) for variable in self._found.values()}
        for variable in variables:
            if id(variable) in known:
                continue
            name, _, replica = variable.name.removesuffix(":0").partition(_REPLICA)
            name, number = re.sub(r"_\d+$", "", name) + (replica and _REPLICA + replica), 1  # Keras counts in a process
            while (key := f"{name}#{number}") in self._found:
                number += 1
            self._found[key] = variable
            value = variable.numpy()
            if value.nbytes > _LARGE_BYTES:
                self._as_found[key] = zlib.crc32(value.tobytes())


def _base(name: str) -> str:
    """The name of the first replica's copy of a variable."""
    name, _, number = name.partition("#")
    return f"{name.partition(_REPLICA)[0]}#{number}"


def refused_unsaved_state(model: keras.Model, mode: str) -> OnUnsavedState | None:
    """What the engine of `fit` calls with a `Resume` whose `state` is `mode`; None if nothing needs to be known.

    It raises WorkloadError for a training step, and warns once of an evaluation step, which changes no weight.
    """
    if mode != EXACT:
        return None
    if model.run_eagerly:
        logger.warning(_EAGER)
    warns = warned_unsaved_state()

    def refuse(kind: str, reason: str) -> None:
        if reason and kind == "train":
            raise WorkloadError(_CHOICE.format(reason))
        warns(kind, reason)

    return refuse


def warned_unsaved_state() -> OnUnsavedState:
    """What the engine of `train` calls: it warns once of each reason."""
    warned: set[str] = set()

    def warn(kind: str, reason: str) -> None:
        del kind
        if reason and reason not in warned:
            warned.add(reason)
            logger.warning(_WARNING.format(reason))

    return warn


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
        parts: how many batches each batch of the checkpoint is split into from now on.
    """
    if restored is None:
        return
    arrays, position = restored
    own = {name: array for name, array in arrays.items() if not name.startswith(NOT_OF_MODEL)}
    own = state_in_parts(own, engine.model, parts, num_replicas=engine.replicas.num_replicas)
    write_state(engine.model, engine.replicas, own)
    engine.left_out.begin_epoch(position.get(LEFT_OUT, 0))
    engine.checks.set_state(position.get("checks"))


class Checkpoints(keras.callbacks.Callback):
    """Saves and restores the whole training state. Checkpoints are written in a thread, while training goes on.

    Args:
        others: callbacks whose state (best value, patience) is saved too; this callback must come after them.
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
        self._states = CallbackStates(others)
        self._outside = OutsideVariables(engine)
        self._restored = restored
        if restored is not None and engine.replicas.is_chief:
            cut_csv_files(others, restored[1]["callbacks"])
        position = restored[1] if restored else {"epoch": options.first_epoch, "step_in_epoch": 0, "step": 0}
        self._epoch, self._in_epoch = position["epoch"], position["step_in_epoch"]
        self._before = position["step"] - self._in_epoch  # steps before this epoch
        self._trained = self._epoch, self._in_epoch  # the epoch and the number of its steps, after the last step
        self._saved = self._position if restored else None  # the position of the newest checkpoint
        self._ahead = 0  # steps of the epoch before, while that one has not ended yet, as its score is awaited
        self._due_at = 0.0  # clock time from which the next checkpoint after an epoch is due
        self._writer = CheckpointWriter(
            run_dir.checkpoints,
            keep=options.keep,
            resume_by=run_dir.resume_by,
            run=run_dir.identity,
            send=run_dir.send,
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
        """Saves the current state, unless the newest checkpoint holds it; returns its step. All workers call it."""
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
        return None if self._interval is None else self._interval - (self._before + self._ahead + done) % self._interval

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores the state of the other callbacks, which they reset when training begins, and what they may move."""
        self._states.begin()
        if self._restored is not None:
            self._restore_callbacks()
        elif self._options.at_begin:
            self._save(*self._position)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Takes back what callbacks do at the begin of a resumed epoch, which they had done before the checkpoint."""
        self._ahead = self._in_epoch if epoch > self._epoch else 0
        if self._restored is not None and self._saved == self._position and self._in_epoch and not self._ahead:
            restore_model(self._engine, self._restored, parts=self._options.parts)
            self._restore_callbacks()

    def _restore_callbacks(self) -> None:
        if self._restored is not None:
            arrays, position = self._restored
            self._states.restore(position["callbacks"], arrays)
            self._outside.restore(arrays, self._options.batch_spec)
            set_random_states(without_prefix(RANDOM, arrays))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves in the middle of an epoch."""
        self._in_epoch = batch + 1
        self._outside.note()
        self._trained = self._epoch, self._in_epoch
        if self._interval and self.step % self._interval == 0:
            self._save(*self._position)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves after an epoch; a resumed run starts with the next one."""
        self._before, self._in_epoch, self._ahead = self.step, 0, 0
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
        states, more = self._states.read()
        arrays.update(more)
        arrays.update(self._outside.arrays())
        arrays.update(with_prefix(RANDOM, random_states()))
        position: dict[str, Any] = {
            "epoch": epoch,
            "step_in_epoch": step_in_epoch,
            "step": step,
            "num_steps": self._options.num_steps,
            "accumulation_steps": self._options.accumulation_steps,
            "callbacks": states,
            "checks": self._engine.checks.get_state(),
            LEFT_OUT: self._engine.left_out.of_epoch if step_in_epoch else 0,
            "stopped": step_in_epoch == 0 and bool(self.model.stop_training),
            "monitored": self._monitored if step_in_epoch == 0 else None,
        }
        if self._run_dir.writes:
            self._run_dir.check_held()
            if self._options.place_of_data is not None:
                position["data"], more = self._options.place_of_data(step_in_epoch)
                arrays.update(with_prefix("data", more))
            self._writer.write(arrays, position)
        self._saved = epoch, step_in_epoch, step


def _monitored(logs: Mapping[str, Any]) -> dict[str, Any] | None:
    """What decides which checkpoint is the best."""
    name = "val_loss" if "val_loss" in logs else "loss"
    return {"name": name, "direction": "min", "value": float(logs[name])} if name in logs else None


class CheckpointWriter:
    """Writes one checkpoint at a time.

    If one cannot be written, for example because the disk is full, or cannot be sent because the store does not answer,
    this is logged, and the earlier ones stay as they are: training goes on, and the next one is tried. After three in a
    row, training stops.

    Args:
        resume_by: how the user resumes the run, for messages.
        run: the run, if the folder is in a run directory.
        send: sends what was written to where the run is kept, if that is not the folder.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int = 2,
        resume_by: str = RESUME_BY_ARGUMENT,
        run: RunIdentity | None = None,
        send: Callable[[], None] | None = None,
    ) -> None:
        self._folder, self._resume_by, self._send = folder, resume_by, send
        self._how: dict[str, Any] = {"keep": keep, "run": run}
        self._is_first = True
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._writing: Future[None] | None = None
        self._num_failures = 0

    def write(self, arrays: dict[str, np.ndarray], position: dict[str, Any]) -> None:
        """Copies the arrays, and begins to write them; first waits for the checkpoint before.

        Raises:
            RunDirError: if three checkpoints in a row could not be written.
        """
        self.wait()
        copies = {name: np.array(array, copy=True) for name, array in arrays.items()}
        if self._is_first:
            self._is_first = False
            size = sum(array.nbytes for array in copies.values()) / 1e6
            logger.info("A checkpoint holds %.1f MB. While it is written, its copy takes as much memory.", size)
        self._writing = self._thread.submit(self._save, copies, position)

    def _save(self, arrays: dict[str, np.ndarray], position: dict[str, Any]) -> None:
        save_checkpoint(self._folder, arrays, position, **self._how)
        if self._send is not None:
            self._send()

    def wait(self) -> bool:
        """Waits until the newest checkpoint is written; returns whether it is."""
        if self._writing is None:
            return True
        writing, self._writing = self._writing, None
        try:
            writing.result()
            self._num_failures = 0
            return True
        except OSError as error:
            self._num_failures += 1
            reason = f"{error.strerror or error}".rstrip(".")
            advice = "Wait until it answers" if isinstance(error, StoreError) else "Free space"
            if not self._folder.parent.is_dir():
                raise RunDirError(
                    f"The run directory {self._folder.parent} is gone, so no checkpoint can be written. Training "
                    "stops. Put it back and resume the run, or start it again in a new one."
                ) from error
            if self._num_failures >= MAX_FAILURES:
                raise RunDirError(
                    f"{self._num_failures} checkpoints in a row could not be written to "
                    f"{self._folder}: {reason}. Training stops, and earlier checkpoints are left as they are. "
                    f"{advice}, and resume the run: {self._resume_by}."
                ) from error
            logger.warning(
                f"A checkpoint could not be written to {self._folder}: {reason}. Training goes on, the earlier "
                f"checkpoints are left as they are, and the next one is tried ({self._num_failures} of {MAX_FAILURES})."
            )
            return False

    def close(self) -> None:
        """Waits for the newest checkpoint, and ends the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
