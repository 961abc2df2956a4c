"""Text read from files: whole files, their lines, and the columns of CSV files. Text is UTF-8."""

import csv
import os
from pathlib import Path

import numpy as np

from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean

_TEST_FRACTION = 0.1


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file, with line endings normalized to newlines.

    Raises:
        DataError: if the file does not exist, cannot be read, is empty, or is not UTF-8 (the line is named).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "a.txt")
        ...     _ = path.write_text("one\\ntwo\\n")
        ...     read_text(path)
        'one\\ntwo\\n'
    """
    path = Path(path)
    if path.is_dir():
        raise DataError(f"Expected a text file. Received the folder {path}.")
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"There is no file {path}.") from error
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}.") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path} has an unknown encoding: line {line} is not UTF-8 (byte 0x{content[error.start]:02x}). "
            "Save the file as UTF-8."
        ) from error
    if not text.strip():
        raise DataError(f"{path} holds no text.")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_text_parts(path: str | os.PathLike[str], *, min_characters: int) -> tuple[str, str]:
    """The first 90 % of the text of a file, for training, and the last 10 %, for testing.

    Args:
        path: the file.
        min_characters: minimum length of each part.

    Raises:
        DataError: if the file cannot be read, or is too short.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "a.txt")
        ...     _ = path.write_text("one two three four five.")
        ...     read_text_parts(path, min_characters=1)
        ('one two three four fiv', 'e.')
    """
    text = read_text(path)
    least = int(np.ceil(2 * min_characters / _TEST_FRACTION))
    if len(text) < least:
        raise DataError(f"{path} has {len(text)} characters; it needs at least {least} to train and test with.")
    cut = len(text) - int(_TEST_FRACTION * len(text))
    return text[:cut], text[cut:]


def read_columns(path: str | os.PathLike[str], columns: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Two columns of a CSV file with a header row. No value may be empty.

    Raises:
        DataError: if the file cannot be read, lacks a column (the message suggests the closest name), or has a
            malformed row (its line is named).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "a.csv")
        ...     _ = path.write_text("label,text\\ngood,It works.\\n")
        ...     read_columns(path, ("text", "label"))
        (['It works.'], ['good'])
    """
    lines = read_text(path).splitlines(keepends=True)
    reader = csv.DictReader(lines, strict=True)
    found: tuple[list[str], list[str]] = ([], [])
    try:
        names = [name.strip() for name in reader.fieldnames or []]
        reader.fieldnames = names
        for column in columns:
            _check_column(path, column, names)
        for row in reader:
            if None in row:  # values after the last column, from an unquoted comma
                raise DataError(
                    f"{path}, line {reader.line_num}: there are more values than the {len(names)} columns. "
                    'Put texts that hold commas in "quotation marks".'
                )
            for values, column in zip(found, columns, strict=True):
                value = (row[column] or "").strip()
                if not value:
                    raise DataError(f"{path}, line {reader.line_num}: column {column!r} is empty. Fill or remove it.")
                values.append(value)
    except csv.Error as error:
        line = min(reader.line_num + 1, len(lines))  # line_num does not count the malformed line.
        raise DataError(f"{path}, line {line}: {error}. Fix the row.") from error
    if not found[0]:
        raise DataError(f"{path} has no row below the names of its columns.")
    return found


def _check_column(path: str | os.PathLike[str], column: str, names: list[str]) -> None:
    if names.count(column) > 1:
        raise DataError(f"{path} has {names.count(column)} columns {column!r}. Give each a different name.")
    if column not in names:
        hint = did_you_mean(column, names) or f" Columns: {', '.join(map(repr, names))}; they are separated by commas."
        raise DataError(f"{path} has no column {column!r}.{hint}")


def read_aligned_lines(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> tuple[list[str], list[str]]:
    """The lines of two line-aligned files.

    Raises:
        DataError: if a file cannot be read, or a line has no counterpart in the other file (the line is named).
    """
    lines = [read_text(path).removesuffix("\n").split("\n") for path in (first, second)]
    if len(lines[0]) != len(lines[1]):
        longer, shorter = (first, second) if len(lines[0]) > len(lines[1]) else (second, first)
        line = min(map(len, lines)) + 1
        raise DataError(
            f"{first} and {second} are not aligned: line {line} of {longer} has no line in {shorter}, which ends with "
            f"line {line - 1}. Give every line its translation."
        )
    for number, pair in enumerate(zip(*lines, strict=True), start=1):
        if bool(pair[0].strip()) != bool(pair[1].strip()):
            empty, full = (first, second) if pair[1].strip() else (second, first)
            raise DataError(
                f"{first} and {second} are not aligned: line {number} of {empty} is empty, but that of {full} is not."
            )
    kept = [(a.strip(), b.strip()) for a, b in zip(*lines, strict=True) if a.strip()]
    return [a for a, _ in kept], [b for _, b in kept]
