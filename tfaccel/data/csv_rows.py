"""The rows of CSV files with the lines that they come from, and damage in lines of text."""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator

from tfaccel.data.bad_data import BadData
from tfaccel.errors import DataError

KEEP_BYTES = "surrogateescape"  # how bytes that cannot be decoded become characters, which `text_damage` finds
_DAMAGE = re.compile("[\0\udc80-\udcff]")


def get_codec(encoding: str) -> str:
    """Python's name of an encoding; in UTF-8, the mark that some programs put first is passed over.

    Raises:
        DataError: if there is none.

    Example:
        >>> get_codec("latin1"), get_codec("UTF-8")
        ('iso8859-1', 'utf-8-sig')
    """
    try:
        name = codecs.lookup(str(encoding)).name
    except LookupError as error:
        raise DataError(
            f"There is no encoding {encoding!r}. Common ones: utf-8, utf-16, latin-1, cp1252, shift_jis, gb18030."
        ) from error
    return "utf-8-sig" if name == "utf-8" else name


def text_damage(text: str) -> str:
    """What is wrong with a text, or "": zero bytes, and bytes that are not in the encoding (see `KEEP_BYTES`).

    Example:
        >>> text_damage(b"a\\xffb".decode("utf-8", KEEP_BYTES)), text_damage("a")
        ('byte 0xff is not in the encoding of the file', '')
    """
    found = _DAMAGE.search(text)
    if found is None:
        return ""
    byte = ord(found[0]) & 0xFF
    return f"byte 0x{byte:02x} is not in the encoding of the file" if byte else "it holds a zero byte"


def csv_rows(
    lines: Iterable[str],
    path: str | os.PathLike[str],
    bad_data: BadData,
    *,
    check_header: Callable[[list[str]], Callable[[list[str]], str]],
    delimiter: str = ",",
) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file below its header, and the first line of each, from 1. Empty rows are passed over.

    Args:
        lines: the lines.
        path: of the file, for messages.
        bad_data: what to do with damaged rows; the lines that such a row spans are counted.
        check_header: takes the header, and returns a function that says what is wrong with a row, or "".
        delimiter: between the fields.

    Raises:
        DataError: for a damaged row, unless it is left out; the line is named.

    Example:
        >>> lines = ["a,b\\n", '1,"x\\n', 'y"\\n']
        >>> list(csv_rows(lines, "a.csv", BadData(), check_header=lambda header: lambda row: ""))
        [(2, ['1', 'x\\ny'])]
    """
    counted = _Counted(lines)
    reader = csv.reader(counted, delimiter=delimiter, strict=True)
    check: Callable[[list[str]], str] | None = None
    while True:
        first = counted.number + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            row, wrong = [], f"{error}. Fix the row."
        else:
            damage = counted.damage(first)
            wrong = f"{damage}. Fix the row." if damage else ""
            if row and not wrong and check is not None:
                wrong = check(row)
        if wrong and check is None:
            raise DataError(f"{path}, line {first}: {wrong}")
        if wrong:
            lost = max(1, counted.number - first + 1)
            bad_data.found(DataError(f"{path}, line {first}: {wrong}"), path, first, count=lost)
        elif row and check is None:
            check = check_header(row)
        elif row:
            yield first, row


class _Counted:
    """Lines, counted as they are read; damaged ones are remembered."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.number = 0
        self._damaged = (0, "")

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        if wrong := text_damage(line):
            self._damaged = (self.number, wrong)
        return line

    def damage(self, first: int) -> str:
        """What is wrong with a line from `first` on, or ""."""
        number, wrong = self._damaged
        return wrong if number >= first else ""
