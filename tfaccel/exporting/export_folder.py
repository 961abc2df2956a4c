"""The folder of an export: written to a temporary folder next to it and moved there when complete."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tfaccel.errors import ExportError
from tfaccel.exporting.saved_model_files import version_folders
from tfaccel.files import folder_beside

RESULT_FILE = "export.json"
SAVED_MODEL_FOLDER = "saved_model"


def next_version(out: Path, version: int | None) -> int:
    """The version of the next export to a folder.

    Args:
        out: the folder, which need not exist.
        version: the requested version; None for one more than the highest.

    Raises:
        ExportError: if the folder holds something other than an export, or already has that version.
    """
    if out.exists() and not out.is_dir():
        raise ExportError(f"--out is a file: {out}. Name a folder.")
    if out.is_dir() and any(out.iterdir()) and not (out / RESULT_FILE).is_file():
        raise ExportError(f"{out} is not empty and holds no export of tfaccel. Choose a new folder.")
    there = version_folders(out / SAVED_MODEL_FOLDER)
    if version is None:
        return max(there, default=0) + 1
    if type(version) is not int or version < 1:
        raise ExportError(f"`version` must be a whole number of at least 1. Received: version={version!r}.")
    if version in there:
        raise ExportError(f"{out} holds version {version} already. Choose another, such as {max(there) + 1}.")
    return version


@contextlib.contextmanager
def export_folder(out: Path) -> Iterator[Path]:
    """Yields an empty folder next to `out`, and moves its content to `out` at the end, SavedModel versions first.

    Raises:
        ExportError: if nothing can be written there.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = folder_beside(out)
    except OSError as error:
        raise ExportError(f"Cannot write to {out}: {error.strerror or error}.") from error
    try:
        yield unfinished
        if out.is_dir() and any(out.iterdir()):
            _move(unfinished, out)
        else:
            with contextlib.suppress(FileNotFoundError):
                out.rmdir()
            os.replace(unfinished, out)
    except OSError as error:  # the disk is full, or another export came first
        raise ExportError(f"Cannot write to {out}: {error}.") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _move(unfinished: Path, out: Path) -> None:
    for version in version_folders(unfinished / SAVED_MODEL_FOLDER).values():
        (out / SAVED_MODEL_FOLDER).mkdir(exist_ok=True)
        os.replace(version, out / SAVED_MODEL_FOLDER / version.name)
    for entry in sorted(unfinished.iterdir()):
        if entry.is_file():
            os.replace(entry, out / entry.name)
