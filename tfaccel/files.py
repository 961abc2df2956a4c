"""Files that are written whole, by a rename at the end; and the folder of all that is kept between runs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfaccel.errors import PlanError, TfaccelError
from tfaccel.local_path import local_path

logger = logging.getLogger("tfaccel")

CACHE_VARIABLE = "TFACCEL_CACHE"


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path next to `path`, with the same suffix; renames it to `path` if the block succeeds.

    Raises:
        TfaccelError: if the path is not local.
    """
    path = local_path(path, TfaccelError)
    temporary = path.with_name(f".{path.stem}-{uuid.uuid4().hex[:8]}{path.suffix}")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # the umask takes away what it must
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def get_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_beside(path: Path) -> Path:
    """A new hidden folder next to `path`, to be renamed to it once it is complete."""
    folder = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    folder.mkdir()
    return folder


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON, with null for NaN and infinity."""
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(finite(value), indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes text as UTF-8."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes one JSON object per line."""
    with whole_file(path) as temporary:
        temporary.write_text("".join(json.dumps(finite(row)) + "\n" for row in rows))


def finite(value: Any) -> Any:
    """A nested value as JSON values; NaN and infinity become None.

    Example:
        >>> finite({"losses": (0.5, float("nan"))})
        {'losses': [0.5, None]}
    """
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def cache_dir() -> Path | None:
    """The directory of everything that is measured once: `TFACCEL_CACHE`, or else ~/.cache/tfaccel.

    None, with one warning, for a user who has no home directory, as in some containers: nothing is kept then.
    """
    try:
        return local_path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "tfaccel", PlanError)
    except RuntimeError:  # HOME is not set, and the user's number is in no list of users
        warn_once(
            f"There is no home directory (HOME is not set), so nothing that is measured is kept. Set {CACHE_VARIABLE} "
            "to a directory to write to."
        )
        return None


@functools.cache
def warn_once(text: str) -> None:
    """Logs a warning, unless it was logged before."""
    logger.warning(text)
