"""The fields of CSV files: well-formed files are read by Arrow, damaged ones row by row, so that each can be named."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import csv as arrow_csv

from tfaccel.data.bad_data import BadData
from tfaccel.data.csv_rows import KEEP_BYTES, csv_rows
from tfaccel.errors import DataError

_DELIMITERS = ",;\t|"
_MAX_FIELD_LENGTH = 2**24  # characters
_SEPARATOR_LINE = re.compile(r'"?sep=([\t !#-/:-@\[-`{-~])"?')  # which Excel writes, and reads, before the header
_BYTE_ORDER_MARKS = {b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_NEWLINE, _QUOTE = ord("\n"), ord('"')

Fields = tuple[list[str], list[pyarrow.StringArray], np.ndarray]


def read_csv(path: Path, codec: str, bad_data: BadData) -> Fields:
    """The names of the columns, the fields of each column, and the line of each row.

    Args:
        path: the file.
        codec: Python's name of its encoding.
        bad_data: what to do with damaged rows.

    Raises:
        DataError: if the file cannot be read or is malformed; the line is named.
    """
    text = _Text.read(path, codec, bad_data)
    found = text.fields_by_arrow(path)
    return text.fields_by_rows(path, bad_data) if found is None else found


def checked_header(names: list[str], path: Path) -> list[str]:
    """The names of the columns; those without one are named by their position.

    Raises:
        DataError: if no column has a name, or two have the same.
    """
    names = [name.strip() for name in names]
    if not any(names):
        raise DataError(f"{path} is empty: its first line must be a header with the columns' names.")
    names = [name or f"column_{number}" for number, name in enumerate(names, 1)]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise DataError(f"Two columns of {path} are called {repeated!r}. Give each a different name.")
    return names


@dataclass(frozen=True)
class _Text:
    """The text of a CSV file, with newlines as line ends, and its delimiter."""

    text: str
    delimiter: str

    @classmethod
    def read(cls, path: Path, codec: str, bad_data: BadData) -> _Text:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"Cannot read {path}: {error}.") from error
        if codec == "utf-8-sig":
            codec = next((name for mark, name in _BYTE_ORDER_MARKS.items() if content.startswith(mark)), codec)
        try:
            text = content.decode(codec, KEEP_BYTES if bad_data.skips else "strict")
        except UnicodeDecodeError as error:
            if b"\0" in content.split(b"\n", 1)[0]:
                raise DataError(f"{path} is not a text file: its first line holds a zero byte.") from error
            line = content.count(b"\n", 0, error.start) + 1
            raise DataError(
                f"{path} is not written in {error.encoding}: byte {content[error.start]:#04x} cannot be read. It is "
                f"in line {line}. "
                f"Say how it is encoded, for example --encoding=latin-1. {bad_data.advice}".strip()
            ) from error
        except UnicodeError as error:
            raise DataError(
                f"{path} is not written in {codec}: {error}. Say how it is encoded (--encoding)."
            ) from error
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        first = text.split("\n", 1)[0]
        if "\0" in first:
            raise DataError(f"{path} is not a text file: its first line holds a zero byte.")
        separator = _SEPARATOR_LINE.fullmatch(first)
        if separator is not None:
            return cls(text[len(first) :], separator[1])  # The empty line that is left keeps the numbers of the others.
        header = text.lstrip("\n").split("\n", 1)[0]
        return cls(text, max(_DELIMITERS, key=header.count))

    def fields_by_arrow(self, path: Path) -> Fields | None:
        """The fields; None if a line is damaged, or may be."""
        try:
            content = self.text.encode()
        except UnicodeEncodeError:  # bytes that are not in the encoding
            return None
        marks = np.frombuffer(content, np.uint8)
        quotes = np.flatnonzero(marks == _QUOTE) if b'"' in content else np.zeros(0, np.int64)
        if b"\0" in content or not _are_well_formed(marks, quotes, ord(self.delimiter)):
            return None
        csv.field_size_limit(_MAX_FIELD_LENGTH)
        try:
            header, start = self._header()
        except csv.Error:
            return None
        names = checked_header(header, path)
        places = _lines_of_rows(marks, quotes, start)
        if not len(places):
            return names, [pyarrow.array([], pyarrow.string())] * len(names), places
        numbers = [str(number) for number in range(len(names))]
        try:
            table = arrow_csv.read_csv(
                pyarrow.BufferReader(memoryview(content)[start:]),
                read_options=arrow_csv.ReadOptions(column_names=numbers),
                parse_options=arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=len(quotes) > 0),
                convert_options=arrow_csv.ConvertOptions(column_types=dict.fromkeys(numbers, pyarrow.string())),
            )
        except pyarrow.ArrowException:
            return None
        if table.num_rows != len(places):
            return None
        return names, [pyarrow.concat_arrays(column.chunks) for column in table.columns], places

    def _header(self) -> tuple[list[str], int]:
        """The names of the columns, and the place in bytes behind them."""
        end = 0

        def lines() -> Iterator[str]:
            nonlocal end
            while end < len(self.text):
                begin, end = end, (self.text.find("\n", end) + 1) or len(self.text)
                yield self.text[begin:end]

        rows = csv.reader(lines(), delimiter=self.delimiter, strict=True)
        return next((row for row in rows if row), []), len(self.text[:end].encode())

    def fields_by_rows(self, path: Path, bad_data: BadData) -> Fields:
        """The fields of the rows that are not damaged."""
        csv.field_size_limit(_MAX_FIELD_LENGTH)
        names: list[str] = []

        def check_header(header: list[str]) -> Callable[[list[str]], str]:
            names.extend(checked_header(header, path))
            num_columns = len(names)
            return lambda row: "" if len(row) == num_columns else _wrong_length(row, num_columns, self.delimiter)

        lines = io.StringIO(self.text, newline="\n")
        rows = list(csv_rows(lines, path, bad_data, check_header=check_header, delimiter=self.delimiter))
        if not names:
            checked_header([], path)
        columns = [pyarrow.array([row[place] for _, row in rows], pyarrow.string()) for place in range(len(names))]
        return names, columns, np.array([line for line, _ in rows], np.int64)


def _wrong_length(row: list[str], num_columns: int, delimiter: str) -> str:
    advice = ""
    if len(row) > num_columns:
        advice = f' Put fields that hold {delimiter!r} in "quotation marks".'
    if len(row) == num_columns + 1:
        advice += " If each row begins with its name, as R writes it, name that column in the header too."
    return f"it has {len(row)} fields, but the header has {num_columns}. Fix it.{advice}"


def _are_well_formed(marks: np.ndarray, quotes: np.ndarray, delimiter: int) -> bool:
    """Whether quotation marks are only around whole fields, and doubled in them."""
    if len(quotes) % 2 or not len(quotes):
        return not len(quotes)
    opening, closing = quotes[::2], quotes[1::2]
    before = np.where(opening == 0, _NEWLINE, marks[opening - 1])
    after = np.where(closing == len(marks) - 1, _NEWLINE, marks[(closing + 1) % len(marks)])
    ends = [delimiter, _NEWLINE, _QUOTE]
    return bool(np.isin(before, ends).all() and np.isin(after, ends).all())


def _lines_of_rows(marks: np.ndarray, quotes: np.ndarray, start: int) -> np.ndarray:
    """The line, from 1, in which each row begins that lies behind the place `start`; empty lines are no rows."""
    newlines = np.flatnonzero(marks == _NEWLINE)
    first = int(np.searchsorted(newlines, start))
    is_end = np.searchsorted(quotes, newlines[first:]) % 2 == 0 if len(quotes) else np.ones(len(newlines) - first, bool)
    ends = newlines[first:][is_end]
    begins = np.concatenate([[start], ends + 1])
    lines = np.concatenate([[first + 1], np.flatnonzero(is_end) + first + 2])
    lengths = np.concatenate([ends, [len(marks)]]) - begins
    return lines[lengths > 0].astype(np.int64)
