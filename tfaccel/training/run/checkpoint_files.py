"""Checkpoints on disk: JSON and plain arrays, committed by a rename, checked by SHA-256.

Arrays are written one after the other, in pieces, and hashed on the way: beyond the arrays themselves, writing takes a
few MB of memory.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import ml_dtypes  # noqa: F401  # gives NumPy the names of its dtypes, such as bfloat16
import numpy as np

from tfaccel.data.stored_arrays import check_archive
from tfaccel.errors import RunDirError
from tfaccel.files import finite
from tfaccel.training.run.remote_run import HEADER_FILE
from tfaccel.training.run.run_dir import RUN_ID, RunIdentity, read_identity

logger = logging.getLogger("tfaccel")

FORMAT = 1
_ARRAYS = "arrays.npz"
_PIECE_BYTES = 1 << 22
_REPLACING = "-1"  # ends the name of a checkpoint that is about to take the place of one with the same step
_NO_SYNC = (errno.EINVAL, errno.EBADF, errno.ENOTSUP)  # from file systems that cannot fsync a folder
_BROKEN = (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile)

Arrays = dict[str, np.ndarray]
Checkpoint = tuple[Arrays, dict[str, Any]]


def save_checkpoint(
    folder: Path, arrays: Arrays, position: dict[str, Any], *, keep: int = 2, run: RunIdentity | None = None
) -> Path:
    """Writes a checkpoint; then deletes all but the newest `keep`, and the best.

    At any moment, what has a visible name is complete, and the newest of these is this checkpoint or the one before.

    Args:
        position: JSON-serializable; its `step` names the checkpoint. Its `monitored`, if there is one, has the `name`,
            `direction` and `value` that decide which checkpoint is the best.
        run: the run, whose id is saved; None for arrays of no run.

    Raises:
        OSError: if it cannot be written. Earlier checkpoints are then untouched.
        RunDirError: if the run directory holds another run by now, which is left as it is.
    """
    if run is not None:
        run.check()
    folder.mkdir(exist_ok=True)
    _tidy(folder)
    final = folder / f"step_{position['step']:010d}"
    temporary = folder / f".{final.name}-{os.getpid()}"
    temporary.mkdir()
    try:
        header = {
            "format": FORMAT,
            "sha256": _write_arrays(temporary / _ARRAYS, arrays),
            "dtypes": {name: str(array.dtype) for name, array in arrays.items()},
            "position": finite(position),
        }
        header |= {} if run is None else {RUN_ID: run.run_id}
        header["sha256_of_header"] = _digest_of_header(header)
        with (temporary / HEADER_FILE).open("w", encoding="utf-8") as file:
            file.write(json.dumps(header, indent=1))
            _sync_file(file)
        if run is not None:
            run.check()
        _commit(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    found = checkpoints(folder)
    of_this_run = [path for path in found if path.name <= final.name]  # later ones were broken, or they would be used
    for path in set(found) - {*of_this_run[-keep:], best_checkpoint(of_this_run)}:
        _remove(path)
    return final


def checkpoints(folder: Path) -> list[Path]:
    """Committed checkpoints, oldest first."""
    return sorted(folder.glob("step_*")) if folder.is_dir() else []


def best_checkpoint(paths: Sequence[Path]) -> Path | None:
    """The checkpoint with the best monitored value, the first of them if several are equal; None if none has one.

    Args:
        paths: checkpoints, oldest first. Values of another metric than the newest's do not count.
    """
    best: Path | None = None
    wanted: tuple[str, str] | None = None
    best_value = 0.0
    for path in reversed(paths):
        try:
            monitored = _read_header(path)["position"].get("monitored")
            key, value = (monitored["name"], monitored["direction"]), float(monitored["value"])
        except (*_BROKEN, AttributeError):
            continue
        wanted = wanted or key
        if key == wanted and (best is None or (value >= best_value if key[1] == "max" else value <= best_value)):
            best, best_value = path, value
    return best


def load_newest(folder: Path, run: RunIdentity | None = None) -> Checkpoint | None:
    """Arrays and position of the newest complete checkpoint; None if there is no checkpoint.

    A broken one is named in a warning, and the one before is used.
    """
    found = checkpoints(folder)
    reasons = []
    for path in reversed(found):
        try:
            return _load(path, run)
        except _BROKEN as error:
            if isinstance(error, RunDirError):  # of another run
                raise
            reasons.append(f"{path.name}: {error}")
            if path != found[0]:
                logger.warning("The checkpoint %s is broken (%s); an older one is used.", path, error)
    if reasons:
        raise RunDirError(
            f"No checkpoint in {folder} can be read ({'; '.join(reasons):.600}). Put back a copy of one, or start over "
            "in a new run directory."
        )
    return None


def checkpoint_weights(folder: Path, name: str) -> list[np.ndarray]:
    """The model's weights in a checkpoint, in the order of `Model.weights`."""
    found = checkpoints(folder)
    by_name = {path.name: path for path in found} | {"best": best_checkpoint(found)}
    chosen = by_name.get(name)
    if chosen is None:
        raise RunDirError(
            f"There is no checkpoint {name!r} in {folder}. Received: checkpoint={name!r}. Expected: "
            f"{', '.join(repr(key) for key, path in by_name.items() if path) or 'none, since there are none'}."
        )
    try:
        arrays, _ = _load(chosen, read_identity(folder.parent))
    except _BROKEN as error:
        if isinstance(error, RunDirError):
            raise
        raise RunDirError(f"The checkpoint {chosen} is broken: {error}. Give another one.") from error
    return [arrays[f"weight/{i}"] for i in range(sum(key.startswith("weight/") for key in arrays))]


def plain(array: np.ndarray) -> np.ndarray:
    """An array with a dtype that NumPy's file format supports; others, such as bfloat16, as unsigned integers."""
    return array if array.dtype.kind in "biufcSU" else array.view(np.uint8 if array.dtype.itemsize == 1 else np.uint16)


def typed(array: np.ndarray, dtype: str) -> np.ndarray:
    """The array that `plain` was given, with the name of its dtype."""
    return array if str(array.dtype) == dtype else array.view(np.dtype(dtype))


def get_bytes(array: np.ndarray) -> memoryview:
    """The bytes of an array in C order, without a copy if it is in that order."""
    flat: Any = np.require(array, requirements="C").reshape(-1).view(np.uint8)
    return memoryview(flat)


class _HashedFile:
    """A file that is written from its begin to its end, and hashed on the way."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> int:
        """Writes and hashes."""
        self.sha256.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Flushes."""
        self._file.flush()


def _write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> str:
    """Writes what `np.savez` would write, in pieces; returns the SHA-256 of the file, which is on the disk then."""
    with path.open("wb") as file:
        hashed: Any = _HashedFile(file)
        with zipfile.ZipFile(hashed, "w") as archive:
            for name, array in arrays.items():
                stored = np.require(plain(array), requirements="C")
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array_header_1_0(member, np.lib.format.header_data_from_array_1_0(stored))
                    content = get_bytes(stored)
                    for start in range(0, len(content), _PIECE_BYTES):
                        member.write(content[start : start + _PIECE_BYTES])
        _sync_file(file)
    return str(hashed.sha256.hexdigest())


def _commit(temporary: Path, final: Path) -> None:
    """Renames a complete checkpoint, which may take the place of another; each rename is on the disk before the next.

    In between, the other one is replaced by nothing: there is first a newer one, by name, then only that.
    """
    _sync_folder(temporary)
    place = final.with_name(final.name + _REPLACING) if final.exists() else final
    os.replace(temporary, place)
    _sync_folder(final.parent)
    if place != final:
        _remove(final)
        os.replace(place, final)
        _sync_folder(final.parent)


def _tidy(folder: Path) -> None:
    """Removes what an interrupted save has left, or completes it."""
    for left in folder.glob(".step_*"):
        shutil.rmtree(left, ignore_errors=True)
    for place in folder.glob(f"step_*{_REPLACING}"):
        final = place.with_name(place.name.removesuffix(_REPLACING))
        _remove(final)
        os.replace(place, final)


def _remove(path: Path) -> None:
    """Removes a checkpoint, so that it is never half there under its name."""
    hidden = path.with_name(f".{path.name}-old")
    with contextlib.suppress(OSError):
        os.replace(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _sync_file(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Puts the names in a folder on the disk, where the file system can do that."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def _read_header(path: Path) -> dict[str, Any]:
    """The checked header of a checkpoint."""
    header = dict(json.loads((path / HEADER_FILE).read_text(encoding="utf-8")))
    if header.pop("sha256_of_header") != _digest_of_header(header):
        raise ValueError(f"the SHA-256 of its {HEADER_FILE} does not match")
    if header["format"] != FORMAT:
        raise ValueError(f"its format is {header['format']}, not {FORMAT}")
    return header


def _load(path: Path, run: RunIdentity | None) -> Checkpoint:
    header = _read_header(path)
    if run is not None:
        run.check_checkpoint(path, header.get(RUN_ID))
    with (path / _ARRAYS).open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != header["sha256"]:
            raise ValueError(f"the SHA-256 of its {_ARRAYS} does not match")
        file.seek(0)
        check_archive(file)
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: typed(stored[name], header["dtypes"][name]) for name in stored.files}
    return arrays, header["position"]


def _digest_of_header(header: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()
