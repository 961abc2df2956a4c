"""Text read from files: whole files, their lines, and the columns of CSV files. Text is UTF-8."""

import csv
import os
from pathlib import Path

import numpy as np

from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean

_TEST_FRACTION = 0.1


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file, with every end of line as a newline.

    Raises:
        DataError: if there is no such file, it cannot be read, it is empty, or it is not UTF-8 (the line is named).

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
        raise DataError(f"A text file is wanted. Received the folder {path}.")
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
    """The first nine tenths of the text of a file, to train on, and its last tenth, to test with.

    Args:
        path: of the file.
        min_characters: what each part must have at least.

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
        raise DataError(f"{path} has {len(text)} characters; {least} are the least to train and to test with.")
    cut = len(text) - int(_TEST_FRACTION * len(text))
    return text[:cut], text[cut:]


def read_columns(path: str | os.PathLike[str], columns: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Two columns of a CSV file whose first row names the columns. No value may be empty.

    Raises:
        DataError: if the file cannot be read, lacks a column (with the nearest name), or a row is broken; its line
            is named.

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
            if None in row:  # What is behind the last column; a comma in a text that is not quoted makes it.
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
        line = min(reader.line_num + 1, len(lines))  # The broken line is not counted.
        raise DataError(f"{path}, line {line}: {error}. Mend the row.") from error
    if not found[0]:
        raise DataError(f"{path} has no row below the names of its columns.")
    return found


def _check_column(path: str | os.PathLike[str], column: str, names: list[str]) -> None:
    if names.count(column) > 1:
        raise DataError(f"{path} has {names.count(column)} columns {column!r}. Give each a name of its own.")
    if column not in names:
        hint = did_you_mean(column, names) or f" Columns: {', '.join(map(repr, names))}; they are separated by commas."
        raise DataError(f"{path} has no column {column!r}.{hint}")


def read_aligned_lines(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> tuple[list[str], list[str]]:
    """The lines of two files, of which each line of the first goes with the same line of the second.

    Raises:
        DataError: if a file cannot be read, or a line of one has no line in the other; it is named.
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
