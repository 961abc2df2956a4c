"""The run directory: where a run may start or resume, which run it holds, and the files that `train` writes.

A few rows of a script's own data are among them: exported files are compared with the model on them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import uuid
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.data.raw_input import FILE_NAME as RAW_INPUT_FILE
from tfaccel.errors import CoupledRowsError, DataError, PlanError, RunDirError, WorkloadError
from tfaccel.files import get_sha256, whole_file, write_json, write_json_lines
from tfaccel.hardware.hardware import Cluster
from tfaccel.known_names import did_you_mean
from tfaccel.local_path import is_utf8, shown_path
from tfaccel.planning.load_workload import list_recipes
from tfaccel.planning.workload import Workload
from tfaccel.training.run.remote_run import (
    CONFIG_FILE,
    RESULT_FILE,
    RUN_ID,
    RemoteRun,
    remote_run,
    run_folder,
    shown_run,
)
from tfaccel.training.run.run_lock import STALE_SECONDS, RunLock, own_files
from tfaccel.training.run.time_limit import FITTED, MAX_SECONDS

logger = logging.getLogger("tfaccel")

_LEFT_OUT_FILE, _METRICS_FILE = "left_out.json", "metrics.jsonl"
_EPOCHS = "epochs"
EXTENDED = "extended"  # the key in the config of what became of the schedule of a run that was extended
_INPUTS_FILE, _NUM_ROWS, _MAX_BYTES = "example_inputs.npz", 4, 1 << 24
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
PERFORMANCE = "performance"  # the key of a row under which `Performance` is saved
RESUME_BY_ARGUMENT = 'resume="auto" (--resume=auto)'
CONTINUE_BY_COMMAND = 'the same command with --resume=auto (resume="auto")'
LEFT_OUT = "left_out"  # the key of the number of batches that were left out in an epoch
WORKERS = "workers"  # the key of the times of each worker
NO_METRICS = ("epoch", "step", "seconds", LEFT_OUT, PERFORMANCE, WORKERS)  # keys of a row that are not metrics

RESUME = ("never", "auto", "must", "extend")
EXTEND = RESUME[-1]
_MUST = 'resume="must" (--resume=must) continues a run'
_OR_START = 'Check the path, or start the run with resume="auto" (--resume=auto).'


class RunDir:
    """The directory of one training run.

    Args:
        path: the directory, which `start` creates.
        config: JSON-serializable data that identifies the run; a resumed run must have the same.
        resume: "never": the directory must be new or empty; "auto": continue if it holds this run; "must": it must hold
            this run; "extend": as "auto", and it may hold this run with fewer epochs.
        writes: False on workers other than the chief, which write nothing.
    """

    def __init__(
        self, path: str | os.PathLike[str], config: dict[str, Any], *, resume: str = "never", writes: bool = True
    ) -> None:
        self.path = checked_place(path, resume)
        self.remote = remote_run(self.path)
        self.config = config
        self.writes = writes
        self.resume_by = RESUME_BY_ARGUMENT  # how the user resumes the run, for messages
        self.continue_by = CONTINUE_BY_COMMAND  # what the user does after a stop
        self.resumes = False
        self.is_longer = False  # than the run that the directory holds
        self.built: dict[str, Any] | None = None  # see `built_settings`; of the run that this directory holds
        self.identity: RunIdentity | None = None  # None for a new run until `make`
        self._lock: RunLock | None = None
        self.rows: list[dict[str, Any]] = []
        if (self.path / CONFIG_FILE).exists():
            self._check_holds_this_run(may_be_longer=resume == EXTEND)
            self.resumes = True
        self._seen = self._content()
        self.close: Callable[[], Any] = _nothing

    @property
    def shown(self) -> str:
        """The directory, or the address that it is a copy of, for messages."""
        return shown_run(self.path)

    @property
    def checkpoints(self) -> Path:
        """The directory of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """The directory of TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def model_file(self) -> Path:
        """The file of the finished model."""
        return self.path / "model.keras"

    def start(self, plan: dict[str, Any] | None) -> None:
        """Creates the directory and writes the config and the plan, if there is one."""
        if self.writes:
            if self.close is _nothing:
                self._hold()
            if plan is None:
                self.make(self.checkpoints)
            else:
                self.make(self.checkpoints, self.tensorboard, plan=plan)
            self.send()

    def send(self) -> None:
        """Sends what has changed to the run's address, if it is not a local directory."""
        if self.remote is not None and self.writes:
            self.remote.send()

    def start_again(self, *, resumes: bool = True) -> None:
        """Lets a new session of this process continue the run from its newest checkpoint, or start it over."""
        self.resumes = resumes
        self.rows = []

    def _hold(self) -> None:
        """Locks the directory until `close`, or until this process ends for any reason."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = RunLock(self.path, self.shown)
        except OSError as error:
            raise self._cannot_be_written(error) from error
        self._lock = lock
        self.close = weakref.finalize(self, _release, lock, self.remote)
        try:
            if self.remote is not None:
                self.remote.hold()
        except RunDirError:
            self.close()
            raise
        if self._content() != self._seen:
            self.close()
            raise RunDirError(
                f"Another run has just written to the run directory {self.shown}. Choose a new one, or resume "
                f"that run: {self.resume_by}."
            )

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Unlocks the directory at the end of the block, and explains errors such as a full disk."""
        try:
            yield
            self.send()
        except OSError as error:
            if error.errno not in _CANNOT_WRITE:
                raise
            raise RunDirError(
                f"The run directory {self.shown} cannot be written: {error.strerror}. Free space, and resume the "
                f"run: {self.resume_by}."
            ) from error
        finally:
            self.close()

    def _content(self) -> tuple[tuple[str, int], ...]:
        """The files of a run and their modification times."""
        files = [self.path / CONFIG_FILE, self.path / "result.json", *self.path.glob("checkpoints/step_*")]
        return tuple(sorted((file.name, file.stat().st_mtime_ns) for file in files if file.exists()))

    def _cannot_be_written(self, error: OSError) -> RunDirError:
        return RunDirError(f"The run directory {self.shown} cannot be written: {error}. Choose another one.")

    def make(self, *folders: Path, **files: dict[str, Any]) -> None:
        """Creates the directory with `config.json`, folders, and JSON files by name."""
        if self.identity is not None:
            self.identity.check()
        self.identity = self.identity or RunIdentity(self.path)
        known = {} if self.identity.run_id is None else {RUN_ID: self.identity.run_id}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if self.is_longer:  # The result comes first: without it, the shorter run is one that goes on.
                (self.path / RESULT_FILE).unlink(missing_ok=True)
            # The config comes first: without it, a directory with folders is not that of a run; see `checked_place`.
            for name, data in {"config": {**self.config, **known}, **files}.items():
                write_json(self.path / f"{name}.json", data)
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._cannot_be_written(error) from error

    def rows_before(self, num_epochs: int) -> bytes:
        """The metrics of the first `num_epochs` epochs, as JSON lines; later ones will be trained again."""
        file = self.path / _METRICS_FILE
        with _named_if_unreadable(file):
            lines = file.read_text().splitlines() if self.resumes and num_epochs and file.exists() else []
            return b"".join(line.encode() + b"\n" for line in lines if json.loads(line)["epoch"] < num_epochs)

    def take_rows(self, lines: bytes, *, num_epochs: int = 0) -> None:
        """Sets the metrics of the epochs trained before resuming."""
        self.rows = [json.loads(line) for line in lines.splitlines()]
        missing = min(set(range(num_epochs)) - {row["epoch"] for row in self.rows}, default=None)
        if missing is not None:
            raise RunDirError(
                f"{self.path / _METRICS_FILE} lacks the metrics of epoch {missing + 1}, which was trained before the "
                "newest checkpoint. Put back a copy of the file, or start over in a new run directory."
            )

    def leave_out(self, epoch: int, step: int, accumulation_steps: int) -> None:
        """Notes the epoch and step, from 0, of a batch that is left out when the run goes on."""
        if self.writes:
            self.check_held()
            write_json(self.path / _LEFT_OUT_FILE, [*self.left_out(), [epoch, step, accumulation_steps]])

    def left_out(self) -> list[list[int]]:
        """The batches that are left out of the run, as given to `leave_out`."""
        file = self.path / _LEFT_OUT_FILE
        with _named_if_unreadable(file):
            found = json.loads(file.read_text()) if self.resumes and file.exists() else []
            return [[int(number) for number in one] for one in found]

    def history(self) -> dict[str, list[float | None]]:
        """The metrics of all epochs, by name."""
        names = [name for name in (self.rows[0] if self.rows else {}) if name not in NO_METRICS]
        return {name: [row.get(name) for row in self.rows] for name in names}

    def check_held(self) -> None:
        """Raises RunDirError if the directory is another's, taken while this process was suspended, or moved away."""
        if self._lock is not None and self._lock.taken_by is not None:
            raise RunDirError(
                f"Another run ({self._lock.taken_by}) has taken over the run directory {self.shown}, because this "
                f"process was suspended for more than {STALE_SECONDS:g} seconds. That run continues; this one ends."
            )
        if self.writes and self.identity is not None:
            self.identity.check()

    def is_own(self) -> bool:
        """Whether the directory holds what this run has written, and nothing that another run has."""
        return self.identity is not None and self.identity.holds()

    def add_row(self, row: dict[str, Any]) -> None:
        """Adds the metrics of one epoch."""
        self.check_held()
        self.rows.append(row)
        if self.writes:
            write_json_lines(self.path / _METRICS_FILE, self.rows)

    def result(self) -> dict[str, Any] | None:
        """The outcome of a complete run; None if it is not complete."""
        file = self.path / "result.json"
        if not self.resumes or self.is_longer or not file.exists():
            return None
        with _named_if_unreadable(file):
            return dict(json.loads(file.read_text()))

    def write_raw_input(self, raw_input: Any) -> None:
        """Writes the description of raw inputs, if there is one."""
        if self.writes and raw_input is not None:
            self.check_held()
            write_json(self.path / RAW_INPUT_FILE, raw_input.to_json())

    def write_result(self, result: dict[str, Any]) -> None:
        """Writes the outcome of the run, with the digests of its files; see `check_run_files`."""
        if self.writes:
            self.check_held()
            files = [self.model_file, self.path / RAW_INPUT_FILE, self.path / _INPUTS_FILE]
            digests = {file.name: get_sha256(file) for file in files if file.is_file()}
            write_json(self.path / RESULT_FILE, {**result, "files": digests})

    def _check_holds_this_run(self, *, may_be_longer: bool) -> None:
        found = read_config(self.path)
        self.identity = RunIdentity(self.path, found.pop(RUN_ID, None))
        self.built = found.pop("built", None)
        if MAX_SECONDS in self.config:  # which has decided the length of the run
            self.config |= {name: found.get(name) for name in FITTED}
        if EXTENDED in found:
            self.config[EXTENDED] = found[EXTENDED]
        found, wanted = _flat(found), _flat(json.loads(json.dumps(self.config)))
        there, here = found.get(_EPOCHS), wanted.get(_EPOCHS)
        if may_be_longer and isinstance(there, int) and isinstance(here, int) and there < here:
            self.is_longer = True
            found[_EPOCHS] = here
        for name in sorted({*found, *wanted}):
            if found.get(name) != wanted.get(name):
                raise self.holds_another(name, found.get(name), wanted.get(name))

    def holds_another(self, name: str, there: Any, here: Any) -> RunDirError:
        """The error for a directory whose run has another value of a setting."""
        longer = name == _EPOCHS and isinstance(there, int) and isinstance(here, int) and there < here
        advice = f' To train it longer: resume="{EXTEND}" (--resume={EXTEND}).' if longer else ""
        return RunDirError(
            f"The run directory {self.shown} holds another run: {name} is {there!r} there and {here!r} here. Choose "
            f"a new directory, or resume with the same settings.{advice}"
        )


def _nothing() -> None:
    pass


def _release(lock: RunLock, remote: RemoteRun | None) -> None:
    """Unlocks a directory, and gives back the run at an address."""
    if remote is not None:
        remote.release()
    lock.release()


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """The config with `options` flattened to `options.name`."""
    options = {f"options.{name}": value for name, value in config.get("options", {}).items()}
    return {**{name: value for name, value in config.items() if name != "options"}, **options}


@dataclass(frozen=True)
class RunIdentity:
    """A run, and the directory that it writes to.

    Attributes:
        path: the directory.
        run_id: differs between any two runs, even of the same settings; None for a run of an earlier version.
    """

    path: Path
    run_id: str | None = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def shown(self) -> str:
        """The directory, or the address that it is a copy of, for messages."""
        return shown_run(self.path)

    def holds(self) -> bool:
        """Whether the directory still holds this run: it may have been moved away, and another run begun there."""
        try:
            return read_config(self.path).get(RUN_ID) == self.run_id
        except RunDirError:
            return False

    def check(self) -> None:
        """Raises RunDirError if the directory no longer holds this run; call it before writing or deleting there."""
        if self.holds():
            return
        if not self.path.is_dir():
            raise RunDirError(
                f"The run directory {self.shown} is gone. Training stops. Put it back and resume the run, or start it "
                "again in a new one."
            )
        raise RunDirError(
            f"The run directory {self.shown} no longer holds this run: it was moved or emptied, and may hold another "
            "run now. Training stops, and leaves everything there as it is. Resume this run where its directory is "
            "now, or start it again in a new one."
        )

    def check_checkpoint(self, place: Path, run_id: str | None) -> None:
        """Raises RunDirError for a checkpoint that another run has saved."""
        if run_id != self.run_id:
            raise RunDirError(
                f"The checkpoint {place} belongs to another run than {self.shown}, which cannot be continued from it. "
                f"Move {place.name} away, so that an older checkpoint is used, or choose a new run directory."
            )


def read_identity(path: Path) -> RunIdentity | None:
    """The identity of the run in a directory; None if there is none."""
    return RunIdentity(path, read_config(path).get(RUN_ID)) if (path / CONFIG_FILE).exists() else None


def read_config(path: Path) -> dict[str, Any]:
    """The config of the run in a directory."""
    file = path / CONFIG_FILE
    with _named_if_unreadable(file):
        found = dict(json.loads(file.read_text()))
        found["options"] = dict(found.get("options", {}))
        return found


@contextlib.contextmanager
def _named_if_unreadable(file: Path) -> Iterator[None]:
    """Within the block, a file of a run that cannot be read is a RunDirError that names it."""
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise RunDirError(f"{file} cannot be read ({error}). Choose a new run directory.") from error


def resume_on(cluster: Cluster | None, resume: str) -> str:
    """`resume` as it applies to this process: only the chief must find a run; the others may not see its files."""
    return "auto" if resume == "must" and cluster is not None and not cluster.is_chief else resume


def checked_place(path: str | os.PathLike[str], resume: str) -> Path:
    """Checks that a run may start or resume at a path, as far as possible without the run's config."""
    if resume not in RESUME:
        hint = did_you_mean(resume, RESUME)
        raise RunDirError(f'`resume` must be "never", "auto", "must" or "extend". Received: resume={resume!r}.{hint}')
    path = run_folder(path)
    shown = shown_run(path)
    if not is_utf8(path):
        raise RunDirError(f"The name of the run directory must be UTF-8. Received: {shown_path(path)}.")
    try:
        if path.exists() and not path.is_dir():
            raise RunDirError(f"The run directory is a file: {shown}. Give the path of a directory.")
        is_empty = not path.is_dir() or all(map(_is_left, path.iterdir()))
    except OSError as error:
        raise RunDirError(f"The run directory {shown} cannot be read: {error.strerror}. Choose another one.") from error
    there = next((one for one in (path, *path.absolute().parents) if one.exists()), path)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise RunDirError(f"The run directory {shown} cannot be created: {there} is not a writable folder.")
    if is_empty:
        if resume == "must":
            raise RunDirError(f"{_MUST}, and the run directory {shown} holds none. {_OR_START}")
        return path
    if not (path / CONFIG_FILE).exists():
        raise RunDirError(
            f"The run directory {shown} is not empty and holds no run of tfaccel. Choose a new directory."
        )
    if resume == "never":
        raise RunDirError(
            f"The run directory {shown} already holds a run. Choose a new one, or resume that run: "
            'resume="auto" (--resume=auto).'
        )
    read_config(path)
    if resume == "must" and not (path / "result.json").exists() and not any(path.glob("checkpoints/step_*")):
        raise RunDirError(f"{_MUST}, and the one in {shown} was stopped before its first checkpoint. {_OR_START}")
    return path


def _is_left(entry: Path) -> bool:
    """Whether an entry says nothing of a run: of the lock, or of a run that was killed before it had a config."""
    if entry.name in ("checkpoints", "tensorboard"):
        return entry.is_dir() and not any(entry.iterdir())
    return entry.name.startswith(f".{Path(CONFIG_FILE).stem}-") or own_files([entry.name])


@contextlib.contextmanager
def nothing_left_if_refused(directory: RunDir) -> Iterator[None]:
    """Removes what a new run has written, if its model, plan or data are refused before anything is kept."""
    was_there, is_new = directory.path.exists(), directory.writes and not directory.resumes
    try:
        yield
    except (PlanError, WorkloadError, DataError, CoupledRowsError):
        if is_new and directory.is_own() and not directory.rows and not any(directory.checkpoints.glob("*")):
            for name in ("config.json", "plan.json"):
                (directory.path / name).unlink(missing_ok=True)
            for folder in (directory.checkpoints, directory.tensorboard):
                shutil.rmtree(folder, ignore_errors=True)
            if not was_there:
                with contextlib.suppress(OSError):  # something else has written to it
                    directory.path.rmdir()
            directory.send()
        raise


def first_inputs(work: Workload, batch_size: int, *, num_rows: int) -> list[np.ndarray]:
    """The model's inputs, flattened, for the first rows of the validation data; without any, of the training data."""
    import keras

    validation = work.validation_data
    data = work.train_data(batch_size, seed=0, epoch=0) if validation is None else validation(batch_size)
    inputs = keras.utils.unpack_x_y_sample_weight(next(iter(data)))[0]
    return [np.asarray(leaf)[:num_rows] for leaf in keras.tree.flatten(inputs)]


def write_example_inputs(directory: RunDir, work: Workload, batch_size: int) -> None:
    """Writes a few rows into a run directory, unless the run is a recipe's, whose data can be read again."""
    if not directory.writes or any(work.name == recipe.name for recipe in list_recipes()):
        return
    try:
        leaves = [
            leaf.astype(bytes) if leaf.dtype == object else leaf
            for leaf in first_inputs(work, batch_size, num_rows=_NUM_ROWS)
        ]
    except Exception as error:  # the user's data may raise anything, and be at their end
        logger.debug("No rows of the data are kept for exports: %s", error)
        return
    if sum(leaf.nbytes for leaf in leaves) <= _MAX_BYTES:
        directory.check_held()
        with whole_file(directory.path / _INPUTS_FILE) as temporary, temporary.open("wb") as file:
            np.savez(file, **{str(place): leaf for place, leaf in enumerate(leaves)})  # type: ignore[arg-type]


def read_example_inputs(run_dir: Path) -> list[np.ndarray] | None:
    """The rows that `write_example_inputs` wrote; None if there are none.

    Raises:
        ValueError, OSError: if the file cannot be read.
    """
    if not (run_dir / _INPUTS_FILE).is_file():
        return None
    with np.load(run_dir / _INPUTS_FILE, allow_pickle=False) as arrays:
        return [arrays[str(place)] for place in range(len(arrays.files))]
