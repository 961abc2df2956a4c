"""Where a run may start or resume: in a new or empty directory, or one that holds the run."""

from __future__ import annotations

import os
from pathlib import Path

from tfaccel.errors import RunDirError
from tfaccel.hardware.hardware import Cluster
from tfaccel.known_names import did_you_mean
from tfaccel.local_path import is_utf8, local_path, shown_path
from tfaccel.training.run.run_identity import CONFIG_FILE, read_config
from tfaccel.training.run.run_lock import own_files

RESUME = ("never", "auto", "must", "extend")
EXTEND = RESUME[-1]
_MUST = 'resume="must" (--resume=must) continues a run'
_OR_START = 'Check the path, or start the run with resume="auto" (--resume=auto).'


def resume_on(cluster: Cluster | None, resume: str) -> str:
    """`resume` as it applies to this process: only the chief must find a run; the others may not see its files."""
    return "auto" if resume == "must" and cluster is not None and not cluster.is_chief else resume


def checked_place(path: str | os.PathLike[str], resume: str) -> Path:
    """Checks that a run may start or resume at a path, as far as possible without the run's config.

    Raises:
        RunDirError: if it is a file, or a directory that holds other files or a run that may not be resumed.
    """
    if resume not in RESUME:
        hint = did_you_mean(resume, RESUME)
        raise RunDirError(f'`resume` must be "never", "auto", "must" or "extend". Received: resume={resume!r}.{hint}')
    path = local_path(path, RunDirError)
    if not is_utf8(path):
        raise RunDirError(f"The name of the run directory must be UTF-8. Received: {shown_path(path)}.")
    try:
        if path.exists() and not path.is_dir():
            raise RunDirError(f"The run directory is a file: {path}. Give the path of a directory.")
        is_empty = not path.is_dir() or all(map(_is_left, path.iterdir()))
    except OSError as error:
        raise RunDirError(f"The run directory {path} cannot be read: {error.strerror}. Choose another one.") from error
    there = next((one for one in (path, *path.absolute().parents) if one.exists()), path)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise RunDirError(f"The run directory {path} cannot be created: {there} is not a writable folder.")
    if is_empty:
        if resume == "must":
            raise RunDirError(f"{_MUST}, and the run directory {path} holds none. {_OR_START}")
        return path
    if not (path / CONFIG_FILE).exists():
        raise RunDirError(f"The run directory {path} is not empty and holds no run of tfaccel. Choose a new directory.")
    if resume == "never":
        raise RunDirError(
            f"The run directory {path} already holds a run. Choose a new one, or resume that run: "
            'resume="auto" (--resume=auto).'
        )
    read_config(path)
    if resume == "must" and not (path / "result.json").exists() and not any(path.glob("checkpoints/step_*")):
        raise RunDirError(f"{_MUST}, and the one in {path} was stopped before its first checkpoint. {_OR_START}")
    return path


def _is_left(entry: Path) -> bool:
    """Whether an entry says nothing of a run: of the lock, or of a run that was killed before it had a config."""
    if entry.name in ("checkpoints", "tensorboard"):
        return entry.is_dir() and not any(entry.iterdir())
    return entry.name.startswith(f".{Path(CONFIG_FILE).stem}-") or own_files([entry.name])
