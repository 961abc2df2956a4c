"""Reads rows to predict from a JSON lines file, as in serving requests or as rows of a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from tfaccel.data.tables.table import Column, Table, clean_texts, number_text
from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean

JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")

Line = tuple[int, Any]  # its number in the file, starting at 1, and its value


def json_lines(path: Path) -> list[Line]:
    """The values in a JSON lines file; empty lines are skipped.

    Raises:
        DataError: if the file cannot be read or is empty, or a line is not valid JSON (with line and column).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "rows.jsonl").write_text('[1, 2]\\n\\n{"a": null}\\n')
        ...     json_lines(Path(folder, "rows.jsonl"))
        [(1, [1, 2]), (3, {'a': None})]
    """
    try:
        found = list(_values(path, path.read_text(encoding="utf-8-sig").split("\n")))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Cannot read {path} as JSON lines in UTF-8: {error}.") from error
    if not found:
        raise DataError(f"{path} is empty.")
    return found


def _values(path: Path, lines: Sequence[str]) -> Iterator[Line]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"Line {number} of {path} is not valid JSON: {error.msg} (column {error.colno})."
                ) from error
            except (ValueError, RecursionError) as error:
                raise DataError(f"Line {number} of {path} cannot be read: {error}.") from error


def texts_of_lines(path: Path, lines: Sequence[Line], column: str) -> tuple[str, ...]:
    """One text per line; a line is a text or an object with a text.

    Raises:
        DataError: for the first line that is neither.
    """
    found = []
    for number, value in lines:
        text = value.get(column) if isinstance(value, dict) else value
        if not isinstance(text, str):
            hint = did_you_mean(column, value) if isinstance(value, dict) and column not in value else ""
            raise DataError(
                f"Line {number} of {path} must be a text, or an object with the text {column!r} (--text_column).{hint}"
                f" Received: {value!r:.60}."
            )
        found.append(text)
    return tuple(found)


def table_of_lines(path: Path, lines: Sequence[Line]) -> Table:
    """Builds a table from lines that are objects of columns; null or an absent column is a missing value.

    Raises:
        DataError: for the first line that is not an object of numbers and texts.
    """
    names: dict[str, None] = {}
    for number, row in lines:
        if not isinstance(row, dict) or any(isinstance(value, (dict, list)) for value in row.values()):
            raise DataError(
                f"Line {number} of {path} must be an object with a number or a text for each column. "
                f"Received: {row!r:.60}."
            )
        names |= dict.fromkeys(row)
    columns = []
    for name in names:
        texts = pyarrow.array([_text(row.get(name)) for _, row in lines], pyarrow.string())
        columns.append(Column(name, clean_texts(texts)))
    return Table(str(path), tuple(columns))


def _text(value: Any) -> str | None:
    """Formats a field as in a CSV file; None if it is missing."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return None
    text = number_text(value) if isinstance(value, float) and np.isfinite(value) else str(value)
    return text.encode(errors="replace").decode()  # JSON can hold halves of a character.


def arrays_of_lines(path: Path, lines: Sequence[Line], inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The model's inputs, by name: a line is an object of them, or the value of the only input.

    Args:
        path: the file, for messages.
        lines: its lines.
        inputs: the model's inputs: name -> shape (with a batch dimension) and dtype.

    Raises:
        DataError: for the first line that does not match the model's inputs.
    """
    columns: dict[str, list[np.ndarray]] = {name: [] for name in inputs}
    for number, row in lines:
        named = row if isinstance(row, dict) else {next(iter(inputs)): row} if len(inputs) == 1 else None
        if named is None or set(named) != set(inputs):
            unknown = [name for name in named or () if name not in inputs]
            hint = did_you_mean(unknown[0], inputs) if unknown else ""
            raise DataError(
                f"Line {number} of {path} must be an object with {', '.join(map(repr, inputs))}.{hint} "
                f"Received: {row!r:.60}."
            )
        for name, spec in inputs.items():
            columns[name].append(_row(named[name], spec, f"Line {number} of {path}: {name!r}"))
    for name, rows in columns.items():
        place = next((place for place, row in enumerate(rows) if row.shape != rows[0].shape), None)
        if place is not None:
            raise DataError(
                f"Line {lines[place][0]} of {path}: {name!r} has shape {rows[place].shape}; in the first line it has "
                f"{rows[0].shape}. All rows of a file must have the same shape."
            )
    return {name: np.stack(rows) for name, rows in columns.items()}


def _row(value: Any, spec: Any, place: str) -> np.ndarray:
    wanted: Sequence[int | None] = spec.shape[1:]
    try:
        row = np.array(value)
    except (ValueError, OverflowError):  # lists of uneven lengths, or numbers of too many digits
        row = np.array(None)
    fits = row.ndim == len(wanted) and all(b is None or a == b for a, b in zip(row.shape, wanted, strict=True))
    kinds = "fiu" if spec.dtype.is_floating else "b" if spec.dtype.name == "bool" else "iu"
    if not fits or row.dtype.kind not in kinds:
        shape = ", ".join("any" if size is None else str(size) for size in wanted)
        raise DataError(f"{place} must be {spec.dtype.name} of shape ({shape}). Received: {value!r:.60}.")
    return row
