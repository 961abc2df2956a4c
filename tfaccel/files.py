"""Atomic file writes: under a temporary name, then renamed."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path next to `path`, with the same suffix; renames it to `path` if the block succeeds."""
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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
    """A nested value with NaN and infinity replaced by None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
