"""Reads rows to predict from users' files: images, texts, tables, arrays, and JSON lines as in serving requests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from tfaccel.data.characters import data_suffix, read_characters, text_damage
from tfaccel.data.folder_files import counted, files_below, unlisted
from tfaccel.data.images.image_check import IMAGE_SUFFIXES
from tfaccel.data.raw_input import RawInput, TableInput
from tfaccel.data.stored_arrays import read_arrays
from tfaccel.data.tables.column_kinds import as_numbers
from tfaccel.data.tables.encoding import find_gaps
from tfaccel.data.tables.files import CSV_SUFFIXES, PARQUET_SUFFIXES, read_table
from tfaccel.data.tables.table import Column, Table, clean_texts, number_text
from tfaccel.data.texts.files import read_text
from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean
from tfaccel.local_path import shown_path

TEXT_SUFFIXES, ARRAY_SUFFIXES, JSON_LINES_SUFFIXES = (".txt",), (".npy", ".npz"), (".jsonl", ".ndjson")
SKIP, FILL = UNKNOWN_VALUES = ("skip", "fill")
_HALF = re.compile("[\ud800-\udfff]")  # of a character: JSON can hold it, UTF-8 cannot

Line = tuple[int, Any]  # its number in a JSON lines file, starting at 1, and its value


@dataclass(frozen=True)
class Rows:
    """Rows to predict.

    Args:
        names: names of the rows, for the output.
        files: one file per row, read on demand; empty if texts or arrays are given.
        encoding: of these files, if they are texts.
        texts: one text per row.
        arrays: the model's inputs, by name.
        unreadable: name -> reason, for rows that are skipped.
        notes: messages about the other rows.
    """

    names: tuple[str, ...]
    files: tuple[Path, ...] = ()
    texts: tuple[str, ...] = ()
    arrays: Mapping[str, np.ndarray] | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    encoding: str = "utf-8"

    def __len__(self) -> int:
        return len(self.names)

    def pieces(self, size: int) -> Iterator[slice]:
        """Slices of at most `size` rows."""
        return (slice(start, min(start + size, len(self))) for start in range(0, len(self), size))


def read_rows(
    path: Path,
    inputs: Mapping[str, Any],
    raw_input: RawInput | None,
    *,
    text_column: str = "text",
    encoding: str = "utf-8",
    unknown_values: str = SKIP,
) -> Rows:
    """Reads the rows in a file or folder.

    A folder provides its image files, or its `.txt` files, including subfolders, sorted by name. A `.txt` file
    provides one row per non-empty line; a table, its rows; a `.npy` or `.npz` file, the rows of its arrays; a `.jsonl`
    file, one row per line, which is a text, an object of the table's columns, or the model's inputs as in serving.

    Args:
        path: the file or folder.
        inputs: the model's inputs: name -> shape (with a batch dimension) and dtype.
        raw_input: description of the raw inputs.
        text_column: column of a table with texts.
        encoding: encoding of CSV and text files, as named in Python.
        unknown_values: how to treat rows of a table with a missing value in a column that had none in training, or with
            an unknown category: "skip" skips them, "fill" fills them in as in training, and reports it. Rows without
            any value are always skipped.
    """
    kind = "tensors" if raw_input is None else raw_input.kind
    if not path.exists():
        raise DataError(f"There is no file or folder {path} (--input).")
    if path.is_dir():
        return _folder(path, kind, encoding)
    suffix = data_suffix(path)
    if suffix in ARRAY_SUFFIXES:
        return _arrays(path, inputs)
    if suffix in JSON_LINES_SUFFIXES:
        return _json_lines(path, inputs, raw_input, text_column, unknown_values)
    if suffix in CSV_SUFFIXES + PARQUET_SUFFIXES:
        table = read_table(path, encoding=encoding, texts=(text_column,) if kind == "text" else ())
        if isinstance(raw_input, TableInput):
            return _encoded(table, raw_input, tuple(str(row) for row in range(table.num_rows)), unknown_values)
        return _table(table, inputs, raw_input, text_column)
    if suffix in IMAGE_SUFFIXES and kind == "image":
        return Rows((shown_path(path),), files=(path,))
    if suffix in TEXT_SUFFIXES and kind == "text":
        lines = _lines(path, encoding)
        return Rows(tuple(f"{path}:{number}" for number, _ in lines), texts=tuple(text for _, text in lines))
    undescribed = "" if raw_input is not None else _not_described(inputs, suffix in IMAGE_SUFFIXES)
    raise DataError(f"This model takes {_taken(kind, inputs)}. Received: {path}.{undescribed}")


def _not_described(inputs: Mapping[str, Any], is_image: bool) -> str:
    """What is missing to predict image files with a model that takes images as arrays."""
    shapes = [tuple(spec.shape[1:]) for spec in inputs.values()]
    if len(shapes) != 1 or len(shapes[0]) != 3 or not is_image:
        return ""
    height, width, channels = shapes[0]
    if height is None or height != width or channels not in (1, 3):
        return ""
    return (
        " For image files, train with a description of them: raw_input=tfaccel.options.ImageInput(class_names=(...), "
        f'outputs="probabilities", image_size={height}, num_channels={channels}).'
    )


def _taken(kind: str, inputs: Mapping[str, Any]) -> str:
    arrays = f"arrays (.npy, .npz, .jsonl) of {', '.join(f'{name} {_row(spec)}' for name, spec in inputs.items())}"
    of_kind = {
        "image": "images (.png, .jpg, .jpeg, .bmp, .gif), folders of them, or ",
        "text": ".txt files, folders of them, tables or JSON lines with texts, or ",
        "table": "tables (.csv, .parquet, .jsonl), or ",
    }
    is_flat = [len(spec.shape) for spec in inputs.values()] == [2]  # one row of numbers per example
    return of_kind.get(kind, "tables of numbers, or " if is_flat else "") + arrays


def _row(spec: Any) -> str:
    return f"of shape {tuple(spec.shape[1:])}, {spec.dtype.name}"


def _folder(folder: Path, kind: str, encoding: str) -> Rows:
    suffixes = {"image": IMAGE_SUFFIXES, "text": TEXT_SUFFIXES}.get(kind)
    if suffixes is None:
        raise DataError(f"This model takes neither images nor texts, which a folder could hold. Received: {folder}.")
    every = files_below(folder)
    found = tuple(file for file in every if file.suffix.lower() in suffixes)
    others = [file for file in every if file.suffix.lower() not in suffixes]
    endings = ", ".join(suffixes)
    if not found:
        received = f" Received: {counted(others)}." if others else ""
        raise DataError(f"{folder} contains no files that end in {endings}.{received}")
    passed = ", ".join(filter(None, (counted(others), unlisted(folder, suffixes))))
    notes = (f"Passed over in {folder}: {passed}. Files that end in {endings} are read.",)
    return Rows(tuple(map(shown_path, found)), files=found, notes=notes if passed else (), encoding=encoding)


def _lines(path: Path, encoding: str) -> list[tuple[int, str]]:
    lines = read_text(path, encoding=encoding, keeps_damage=True).split("\n")
    found = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    damaged = next((number for number, line in found if text_damage(line)), None)
    if damaged is not None:
        wrong = text_damage(lines[damaged - 1])
        raise DataError(f"{path}, line {damaged}: {wrong}. Fix the line. Or give the file's --encoding.")
    return found


def _encoded(table: Table, raw_input: TableInput, names: tuple[str, ...], unknown_values: str) -> Rows:
    """The rows of a table that can be predicted, the reasons why others cannot, and notes."""
    arrays, gaps = raw_input.encoding.encode(table), find_gaps(raw_input.encoding, table)
    reasons = gaps.reasons()
    if unknown_values == FILL:
        reasons = {row: reason for row, reason in reasons.items() if gaps.empty[row]}
    kept = np.array([row for row in range(len(names)) if row not in reasons], dtype=np.int64)
    return Rows(
        tuple(names[row] for row in kept),
        arrays={name: array[kept] for name, array in arrays.items()},
        unreadable={names[row]: reasons[row] for row in sorted(reasons)},
        notes=tuple(gaps.lines(are_filled=unknown_values == FILL)),
    )


def _json_lines(
    path: Path, inputs: Mapping[str, Any], raw_input: RawInput | None, text_column: str, unknown_values: str
) -> Rows:
    lines = json_lines(path)
    names = tuple(f"{path}:{number}" for number, _ in lines)
    if isinstance(raw_input, TableInput):
        return _encoded(table_of_lines(path, lines), raw_input, names, unknown_values)
    if raw_input is not None and raw_input.kind == "text":
        return Rows(names, texts=texts_of_lines(path, lines, text_column))
    return Rows(names, arrays=arrays_of_lines(path, lines, inputs))


def _table(table: Table, inputs: Mapping[str, Any], raw_input: RawInput | None, text_column: str) -> Rows:
    names = tuple(str(row) for row in range(table.num_rows))
    if raw_input is not None and raw_input.kind == "text":
        texts = table.column(text_column).texts()
        return Rows(names, texts=tuple("" if text is None else text for text in texts.tolist()))
    ((name, spec), *others) = inputs.items()
    if others or len(spec.shape) != 2 or spec.shape[1] not in (None, len(table.columns)):
        raise DataError(
            f"{table.source} has {len(table.columns)} columns. This model takes {_taken('tensors', inputs)}."
        )
    for column in table.columns:
        if column.missing.any():
            row = int(np.flatnonzero(column.missing)[0])
            raise DataError(
                f"{table.source} must hold a number in every field, for this model: {column.name!r} is missing in row "
                f"{row + 1} below the header."
            )
    advice = "; this model takes a number in every field"
    array = np.stack([as_numbers(column, table.source, advice=advice) for column in table.columns], axis=1)
    _check_held(array, spec, table.source)
    return Rows(names, arrays={name: array})


def _arrays(path: Path, inputs: Mapping[str, Any]) -> Rows:
    try:
        found = read_arrays(path)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise DataError(f"Cannot read {path}: {error}. Write it with numpy.save or numpy.savez.") from error
    if len(found) == 1 and len(inputs) == 1:
        found = dict(zip(inputs, found.values(), strict=True))
    arrays = {}
    for name, spec in inputs.items():
        if name not in found:
            hint = did_you_mean(name, found)
            raise DataError(f"{path} has no array {name!r}.{hint} It has: {', '.join(filter(None, found)) or 'one'}.")
        arrays[name] = _checked(found[name], spec, f"{name} in {path}")
    lengths = {len(array) for array in arrays.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise DataError(
            f"The arrays in {path} must have the same number of rows, at least one. Received: {sorted(lengths)}."
        )
    return Rows(tuple(str(row) for row in range(lengths.pop())), arrays=arrays)


def _checked(array: np.ndarray, spec: Any, name: str) -> np.ndarray:
    fits = array.ndim > 0 and spec.shape[1:].is_compatible_with(array.shape[1:])
    if not fits or array.dtype.kind not in "biuf":
        raise DataError(f"{name} must hold rows {_row(spec)}. Received: {array.dtype}, shape {array.shape}.")
    _check_held(array, spec, name)
    return array


def _check_held(array: np.ndarray, spec: Any, name: str) -> None:
    """Raises DataError if the model's dtype has no value for a number: it would become another one."""
    kind = np.dtype(spec.dtype.as_numpy_dtype)
    if np.can_cast(array.dtype, kind):
        return
    with np.errstate(over="ignore", invalid="ignore"):
        held = array.astype(kind)
        back = held.astype(array.dtype)
    is_lost = np.isinf(held) & np.isfinite(array) if spec.dtype.is_floating else back != array
    if spec.dtype.is_integer and array.dtype.kind in "iu":  # a number and what it wraps around to may be equal again
        is_lost |= (held < 0) != (array < 0)
    if is_lost.any():
        first = array[is_lost][0]
        raise DataError(f"{name} has {first:.10g}, which {spec.dtype.name}, the dtype of this input, cannot hold.")


def json_lines(path: Path) -> list[Line]:
    """The values in a JSON lines file; empty lines are skipped.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "rows.jsonl").write_text('[1, 2]\\n\\n{"a": null}\\n')
        ...     json_lines(Path(folder, "rows.jsonl"))
        [(1, [1, 2]), (3, {'a': None})]
    """
    found = list(_values(path, read_characters(path, advice="Save the file as UTF-8.").split("\n")))
    if not found:
        raise DataError(f"{path} is empty.")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def _values(path: Path, lines: Sequence[str]) -> Iterator[Line]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, json.loads(line, object_pairs_hook=_object)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"Line {number} of {path} is not valid JSON: {error.msg} (column {error.colno})."
                ) from error
            except (ValueError, RecursionError) as error:
                raise DataError(f"Line {number} of {path} cannot be read: {error}.") from error


def texts_of_lines(path: Path, lines: Sequence[Line], column: str) -> tuple[str, ...]:
    """One text per line; a line is a text or an object with a text."""
    found = []
    for number, value in lines:
        text = value.get(column) if isinstance(value, dict) else value
        if not isinstance(text, str):
            hint = did_you_mean(column, value) if isinstance(value, dict) and column not in value else ""
            raise DataError(
                f"Line {number} of {path} must be a text, or an object with the text {column!r} (--text_column).{hint}"
                f" Received: {value!r:.60}."
            )
        if _HALF.search(text):
            raise DataError(f"Line {number} of {path} has half of a character. Received: {value!r:.60}.")
        found.append(text)
    return tuple(found)


def table_of_lines(path: Path, lines: Sequence[Line]) -> Table:
    """Builds a table from lines that are objects of columns; null or an absent column is a missing value."""
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
            columns[name].append(_row_of_value(named[name], spec, f"Line {number} of {path}: {name!r}"))
    for name, rows in columns.items():
        place = next((place for place, row in enumerate(rows) if row.shape != rows[0].shape), None)
        if place is not None:
            raise DataError(
                f"Line {lines[place][0]} of {path}: {name!r} has shape {rows[place].shape}; in the first line it has "
                f"{rows[0].shape}. All rows of a file must have the same shape."
            )
    return {name: np.stack(rows) for name, rows in columns.items()}


def _row_of_value(value: Any, spec: Any, place: str) -> np.ndarray:
    try:
        row = np.array(value)
    except (ValueError, OverflowError):  # lists of uneven lengths, or numbers of too many digits
        row = np.array(None)
    kinds = "fiu" if spec.dtype.is_floating else "b" if spec.dtype.name == "bool" else "iu"
    if not spec.shape[1:].is_compatible_with(row.shape) or row.dtype.kind not in kinds:
        shape = ", ".join("any" if size is None else str(size) for size in spec.shape[1:])
        raise DataError(f"{place} must be {spec.dtype.name} of shape ({shape}). Received: {value!r:.60}.")
    _check_held(row, spec, place)
    return row
