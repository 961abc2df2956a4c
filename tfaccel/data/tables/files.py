"""Tables from files: CSV with Python's csv module, Parquet with pyarrow (the extra `data`)."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.data.bad_data import BadData, always_fail
from tfaccel.data.csv_rows import KEEP_BYTES, codec_of, csv_rows
from tfaccel.data.tables.table import Column, Table
from tfaccel.errors import DataError

CSV_SUFFIXES = (".csv", ".tsv")
PARQUET_SUFFIXES = (".parquet", ".pq")
# Lowercase texts that denote a missing value.
_MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
_DELIMITERS = ",;\t|"
_MAX_FIELD_LENGTH = 2**24  # characters


def read_table(path: str | os.PathLike[str], *, encoding: str = "utf-8", bad_data: BadData | None = None) -> Table:
    """The table in a CSV or Parquet file.

    A CSV file has a header; its delimiter is the comma, semicolon, tab or bar, whichever is most frequent in the
    header. Empty fields, NA, N/A, NaN, null, None and ? are missing values. All columns of a CSV file are read as text.
    A column without a name, such as the index that pandas writes, is named by its position: column_1.

    Args:
        path: the file.
        encoding: Python's name of the encoding of a CSV file.
        bad_data: what to do with damaged rows of a CSV file, and row groups of a Parquet file; None for an error.

    Raises:
        DataError: if the file does not exist, the encoding is unknown or wrong, or the file is malformed; the message
            names the line.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "pets.csv")
        ...     _ = path.write_text("name;age\\nMia;3\\nRex;\\n")
        ...     read_table(path).column("age").values.tolist()
        ['3', None]
    """
    file = Path(path)
    if not file.exists():
        raise DataError(f"There is no file {file}.")
    suffix = file.suffix.lower()
    if not file.is_file() or suffix not in CSV_SUFFIXES + PARQUET_SUFFIXES:
        raise DataError(
            f"A table must be a file that ends in {', '.join(CSV_SUFFIXES + PARQUET_SUFFIXES)}. Received: {file}."
        )
    bad_data = bad_data or always_fail()
    table = _read_csv(file, codec_of(encoding), bad_data) if suffix in CSV_SUFFIXES else _read_parquet(file, bad_data)
    if table.num_rows == 0:
        raise DataError(f"{file} has a header, but no rows.")
    return table


def _read_csv(path: Path, encoding: str, bad_data: BadData) -> Table:
    csv.field_size_limit(_MAX_FIELD_LENGTH)
    header: list[str] = []

    def check_header(names: list[str]) -> Callable[[list[str]], str]:
        header.extend(_header(names, path))
        return lambda row: (
            "" if len(row) == len(header) else f"it has {len(row)} fields, but the header has {len(header)}. Fix it."
        )

    try:
        with path.open(encoding=encoding, newline="", errors=KEEP_BYTES if bad_data.skips else "strict") as file:
            first = file.readline()
            if "\0" in first:
                raise DataError(f"{path} is not a text file: its first line holds a zero byte.")
            file.seek(0)
            delimiter = max(_DELIMITERS, key=first.count)
            rows = list(csv_rows(file, path, bad_data, check_header=check_header, delimiter=delimiter))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not written in {error.encoding}: byte {error.object[error.start]:#04x} cannot be read. "
            f"Say how it is encoded, for example --encoding=latin-1. {bad_data.advice}".strip()
        ) from error
    except UnicodeError as error:
        raise DataError(f"{path} is not written in {encoding}: {error}. Say how it is encoded (--encoding).") from error
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error}.") from error
    if not header:
        _header([], path)
    columns = tuple(Column(name, _texts(row[i] for _, row in rows)) for i, name in enumerate(header))
    return Table(str(path), columns, np.array([line for line, _ in rows], np.int64))


def _header(names: list[str], path: Path) -> list[str]:
    names = [name.strip() for name in names]
    if not any(names):
        raise DataError(f"{path} is empty: its first line must be a header with the columns' names.")
    names = [name or f"column_{number}" for number, name in enumerate(names, 1)]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise DataError(f"Two columns of {path} are called {repeated!r}. Give each a different name.")
    return names


def _texts(values: Iterator[str]) -> np.ndarray:
    """An object array of texts that shares equal ones, with None for missing values."""
    kept: dict[str, str | None] = {}
    found = []
    for value in values:
        if value not in kept:
            text = value.strip()
            kept[value] = None if text.lower() in _MISSING else text
        found.append(kept[value])
    column = np.empty(len(found), dtype=object)
    column[:] = found
    return column


def _read_parquet(path: Path, bad_data: BadData) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            f"Reading {path} needs pyarrow, which is not installed. Install it: pip install 'tfaccel[data]'. "
            "Or write the table as CSV."
        ) from error
    try:
        file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"Cannot read {path}: {error}.") from error
    names = list(file.schema_arrow.names)
    _header(names, path)
    groups, numbers, first = [], [np.zeros(0, np.int64)], 1
    for group in range(file.num_row_groups):
        num_rows = file.metadata.row_group(group).num_rows
        try:
            groups.append(file.read_row_group(group))
            numbers.append(np.arange(first, first + num_rows))
        except (pyarrow.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())
            damaged = DataError(f"Cannot read {path}: the row group {group} (from 0) is damaged: {reason:.200}.")
            bad_data.found(damaged, path, group, count=num_rows)
        first += num_rows
    read = pyarrow.concat_tables(groups) if groups else file.schema_arrow.empty_table()
    columns = tuple(_parquet_column(name, read.column(place), path) for place, name in enumerate(names))
    return Table(str(path), columns, np.concatenate(numbers))


def _parquet_column(name: str, values: Any, path: Path) -> Column:
    from pyarrow import types

    kind = values.type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        numbers = [np.nan if value is None else float(value) for value in values.to_pylist()]
        return Column(name, np.array(numbers, dtype=np.float64))
    if types.is_nested(kind):
        raise DataError(f"Column {name!r} of {path} holds {kind}; a column must hold numbers or texts.")
    return Column(name, _texts("" if value is None else str(value) for value in values.to_pylist()))
