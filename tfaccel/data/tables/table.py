"""`Table`: named columns of equal length, as read from a file; and their texts as missing values, numbers and dates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow
from pyarrow import compute

from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean
from tfaccel.short_repr import noun

# Markers of a missing value; in others' capitals, such as Na and Null, they are symbols and names. Among numbers and
# dates, NO_VALUE marks one too, in any capitals; among texts it is a value.
_WORDS = ("na", "n/a", "nan", "null", "-nan", "+nan", "#n/a", "#na", "#n/a n/a", "<na>")
_OF_C = ("-nan(ind)", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN")  # which programs in C write on Windows
_OF_SPREADSHEETS = ("#DIV/0!", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!")  # which their formulas give
MISSING = ("", "?", *_WORDS, *map(str.upper, _WORDS), "NaN", "-NaN", "+NaN", *_OF_C, *_OF_SPREADSHEETS)
NO_VALUE = "none"
_SPELLINGS = pyarrow.array(MISSING)
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_INFINITY = r"^[+-]?(?i:inf|infinity)$"
_EXACT = 2.0**53  # float64 holds all integers up to this one

_TIME = r"(?:[T ]\s*([0-9]{1,2}):([0-9]{2})(?::[0-9]{2}(?:\.[0-9]+)?)?\s*(?:Z|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
_SIGN = r"[-/.]"
# Order -> the pattern of its dates, valid in both RE2 and Python, and the groups of year, month and day.
# A time of day may follow; an offset from UTC is ignored: local time counts.
PATTERNS: dict[str, tuple[str, tuple[int, int, int]]] = {
    "ymd": (rf"([0-9]{{4}}){_SIGN}([0-9]{{1,2}}){_SIGN}([0-9]{{1,2}}){_TIME}", (1, 2, 3)),
    "dmy": (rf"([0-9]{{1,2}}){_SIGN}([0-9]{{1,2}}){_SIGN}([0-9]{{4}}){_TIME}", (3, 2, 1)),
    "mdy": (rf"([0-9]{{1,2}}){_SIGN}([0-9]{{1,2}}){_SIGN}([0-9]{{4}}){_TIME}", (3, 1, 2)),
}
HOUR_GROUP, MINUTE_GROUP = 4, 5
YEAR, MONTH, DAY, WEEKDAY = "year", "month", "day", "weekday"
_SEASON, _TIME_OF_DAY = ("season, sine", "season, cosine"), ("time of day, sine", "time of day, cosine")
PARTS = (YEAR, MONTH, DAY, WEEKDAY, *_SEASON, *_TIME_OF_DAY)
_DAYS_OF_YEAR, _HOURS = 365.25, 24.0
# A column holds dates if this fraction of its values parses as dates.
_MOSTLY_DATES = 0.8


class Column:
    """One column of a table. What is derived from its values is kept, so they must not change afterwards.

    Args:
        name: its name in the header.
        values: float64 with NaN for missing values; or texts, an object array with None for missing values, or an Arrow
            array of strings.
    """

    def __init__(self, name: str, values: np.ndarray | pyarrow.StringArray) -> None:
        self.name = name
        self._given = values
        self._date_parts: dict[str, dict[str, np.ndarray]] = {}  # by order

    def __len__(self) -> int:
        return len(self._given)

    @cached_property
    def values(self) -> np.ndarray:
        """The values: float64, or texts as an object array."""
        if isinstance(self._given, np.ndarray):
            return self._given
        return self._given.to_numpy(zero_copy_only=False)

    @property
    def is_text(self) -> bool:
        """Whether the values are texts, which may be unparsed numbers."""
        return not isinstance(self._given, np.ndarray) or self._given.dtype == object

    @property
    def missing(self) -> np.ndarray:
        """A boolean mask of the rows without a value, of shape (num_rows,)."""
        return _as_numpy(self.strings.is_null()) if self.is_text else np.isnan(self._given)

    def texts(self) -> np.ndarray:
        """The values as texts, None for missing values; integers are written without a decimal point.

        Example:
            >>> Column("age", np.array([3.0, np.nan, 2.5])).texts().tolist()
            ['3', None, '2.5']
        """
        if self.is_text:
            return self.values
        return np.array([None if np.isnan(v) else number_text(v) for v in self._given.tolist()], dtype=object)

    @property
    def strings(self) -> pyarrow.StringArray:
        """The values as texts in an Arrow array."""
        if isinstance(self._given, np.ndarray):
            return pyarrow.array(self.texts().tolist(), pyarrow.string())
        return self._given

    @cached_property
    def codes(self) -> tuple[np.ndarray, pyarrow.StringArray]:
        """The index of each row's text among the distinct ones, -1 if it is missing; and the distinct texts.

        Example:
            >>> places, texts = Column("kind", np.array(["cat", None, "dog", "cat"], dtype=object)).codes
            >>> places.tolist(), texts.to_pylist()
            ([0, -1, 1, 0], ['cat', 'dog'])
        """
        encoded = self.strings.dictionary_encode()
        return _as_numpy(encoded.indices.fill_null(-1)), encoded.dictionary

    @property
    def num_distinct(self) -> int:
        """The number of distinct values."""
        if self.is_text:
            return len(self.codes[1])
        return len(np.unique(self._given[~np.isnan(self._given)]))

    @cached_property
    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """The values as float64, with NaN for missing and non-numeric ones; and the rows of the non-numeric ones.

        Example:
            >>> Column("age", np.array(["3", None, "three"], dtype=object)).numbers
            (array([ 3., nan, nan]), array([2]))
        """
        if not self.is_text:
            return self._given, np.flatnonzero(np.isinf(self._given))
        strings = self.strings
        present = strings.slice(int(np.argmin(self.missing)), 1) if len(strings) else strings
        if not len(numbers_of_texts(present)[1]):  # A cast that fails takes long.
            try:
                return finite_numbers(compute.cast(strings, pyarrow.float64()), self.missing)
            except pyarrow.ArrowInvalid:
                pass
        places, texts = self.codes
        numbers, wrong = numbers_of_texts(texts)
        is_wrong = np.zeros(len(texts) + 1, bool)
        is_wrong[wrong] = True
        return np.append(numbers, np.nan)[places], np.flatnonzero(is_wrong[places])

    @property
    def num_infinite(self) -> int:
        """The rows of texts that are infinite numbers, such as "inf" and "1e999"."""
        places, texts = self.codes
        return int(np.append(are_infinite(texts), False)[places].sum())

    @property
    def date_order(self) -> str | None:
        """The order of year, month and day in the dates of the column; None if it does not hold dates."""
        return self._dates.order

    @property
    def has_ambiguous_dates(self) -> bool:
        """Whether it holds dates whose day and month are ambiguous."""
        return self._dates.is_ambiguous

    def dates(self, order: str) -> dict[str, np.ndarray]:
        """The parts of the dates in this order, see `get_parts`; NaN where there is none."""
        if order not in self._date_parts:
            places, texts = self.codes
            found: _DatesOfTexts | None = vars(self).get("_dates")  # if the order was looked for, its parts are there
            parts = (found and found.parts.get(order)) or date_parts(texts, order)
            self._date_parts[order] = {name: np.append(part, np.nan)[places] for name, part in parts.items()}
        return self._date_parts[order]

    def wrong_dates(self, order: str) -> np.ndarray:
        """The rows of texts that are neither dates in this order nor missing."""
        unread = np.flatnonzero(np.isnan(self.dates(order)[YEAR]))
        return np.array([row for row in unread.tolist() if not is_no_value(self.texts()[row])], np.int64)

    def rows(self, numbers: np.ndarray) -> Column:
        """The column of these rows, given by indices or a mask."""
        if isinstance(self._given, np.ndarray):
            return Column(self.name, self._given[numbers])
        choice = pyarrow.array(numbers)
        found = Column(self.name, self._given.filter(choice) if numbers.dtype == bool else self._given.take(choice))
        for order, parts in self._date_parts.items():  # slow to read again
            found._date_parts[order] = {name: part[numbers] for name, part in parts.items()}
        return found

    def without_no_value(self) -> Column:
        """The column with its texts "none", which among numbers and dates mean this, as missing values."""
        if not self.is_text:
            return self
        is_none = compute.equal(compute.utf8_lower(self.strings), NO_VALUE)
        if not compute.any(is_none).as_py():
            return self
        return Column(self.name, compute.if_else(is_none, None, self.strings))

    @cached_property
    def _dates(self) -> _DatesOfTexts:
        places, texts = self.codes
        return _dates_of_texts(texts, np.bincount(places[places >= 0], minlength=len(texts)))


def _as_numpy(array: pyarrow.Array) -> np.ndarray:
    return array.to_numpy(zero_copy_only=False)


@noun(kw_only=False)
class Table:
    """Named columns of equal length.

    Args:
        source: where it is from, for messages: a path, or the name of a set.
        columns: at least one.
        places: int64, where each row is in the file: its line in a CSV file, its number from 1 in a Parquet file; None
            if it was not read from one.

    Example:
        >>> table = Table("made up", (Column("age", np.array([30.0, 41.0])),))
        >>> table.num_rows, table.names
        (2, ('age',))
    """

    source: str
    columns: tuple[Column, ...]
    places: np.ndarray | None = None

    def __post_init__(self) -> None:
        lengths = {len(column) for column in self.columns}
        if len(lengths) != 1:
            raise DataError(f"A table needs columns of one length. Received, from {self.source}: {sorted(lengths)}.")

    @property
    def num_rows(self) -> int:
        """Rows below the header."""
        return len(self.columns[0])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """The column of this name.

        Raises:
            DataError: if there is none; the message suggests the closest name.
        """
        for column in self.columns:
            if column.name == name:
                return column
        hint = did_you_mean(name, self.names) or f" Columns: {', '.join(self.names)}."
        raise DataError(f"{self.source} has no column {name!r}.{hint}")

    def rows(self, numbers: np.ndarray) -> Table:
        """The table of these rows, given by indices or a mask."""
        if numbers.dtype == bool and numbers.all():
            return self
        places = None if self.places is None else self.places[numbers]
        return Table(self.source, tuple(column.rows(numbers) for column in self.columns), places)

    def place(self, row: int) -> int:
        """Where a row is in the file, or its number from 1."""
        return row + 1 if self.places is None else int(self.places[row])


def clean_texts(texts: pyarrow.StringArray, *, keeps_markers: bool = False) -> pyarrow.StringArray:
    """Texts without whitespace around them, null for missing values.

    Args:
        texts: of fields.
        keeps_markers: whether only empty texts are missing values.

    Example:
        >>> clean_texts(pyarrow.array([" cat", "", "N/A", "None"])).to_pylist()
        ['cat', None, None, 'None']
    """
    trimmed = compute.utf8_trim_whitespace(texts)
    missing = compute.equal(trimmed, "") if keeps_markers else compute.is_in(trimmed, value_set=_SPELLINGS)
    return compute.if_else(missing, None, trimmed)


def is_no_value(text: str | None) -> bool:
    """Whether a field among numbers or dates is empty.

    Example:
        >>> is_no_value(None), is_no_value("NONE"), is_no_value("0")
        (True, True, False)
    """
    return text is None or text.lower() == NO_VALUE


def number_text(number: float) -> str:
    """The shortest text that is read as this number; integers have no decimal point.

    Example:
        >>> number_text(3.0), number_text(0.1), number_text(float(2**53 - 1))
        ('3', '0.1', '9007199254740991')
    """
    return str(int(number)) if abs(number) < _EXACT and number == int(number) else repr(number)


def numbers_of_texts(texts: pyarrow.StringArray) -> tuple[np.ndarray, np.ndarray]:
    """Texts as float64, with NaN for what is missing or no finite number; and the rows of the latter.

    Example:
        >>> numbers_of_texts(pyarrow.array(["3", None, "three", "3_4", "none"]))
        (array([ 3., nan, nan, nan, nan]), array([2, 3]))
    """
    plain = compute.utf8_trim_whitespace(_with_ascii_digits(texts))
    numbers = compute.if_else(compute.match_substring_regex(plain, _NUMBER), plain, None)
    missing = compute.equal(compute.utf8_lower(texts), NO_VALUE).fill_null(True)
    return finite_numbers(compute.cast(numbers, pyarrow.float64()), missing.to_numpy(zero_copy_only=False))


def are_infinite(texts: pyarrow.StringArray) -> np.ndarray:
    """Which texts are numbers, but none that float64 holds: a boolean mask.

    Example:
        >>> are_infinite(pyarrow.array(["inf", "-Infinity", "1e999", "1e9", "info"])).tolist()
        [True, True, True, False, False]
    """
    of_number = compute.match_substring_regex(texts, _NUMBER)
    numbers = compute.cast(compute.if_else(of_number, texts, None), pyarrow.float64())
    found = compute.or_(compute.is_inf(numbers).fill_null(False), compute.match_substring_regex(texts, _INFINITY))
    return found.to_numpy(zero_copy_only=False)


def finite_numbers(numbers: pyarrow.DoubleArray, missing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers with NaN for those that are not finite; and the rows of these that are not missing."""
    found = numbers.to_numpy(zero_copy_only=False)
    finite = np.isfinite(found)
    return np.where(finite, found, np.nan), np.flatnonzero(~missing & ~finite)


def _with_ascii_digits(texts: pyarrow.StringArray) -> pyarrow.StringArray:
    """Texts with digits of other scripts, such as the Arabic ones, written in ASCII."""
    if compute.all(compute.string_is_ascii(texts)).as_py() is not False:
        return texts
    return pyarrow.array([None if text is None else _ascii_digits(text) for text in texts.to_pylist()], texts.type)


def _ascii_digits(text: str) -> str:
    return text if text.isascii() else "".join(str(int(mark)) if mark.isdecimal() else mark for mark in text)


def merged_integers(texts: list[str]) -> tuple[str, str] | None:
    """Two of these texts that are different integers, but the same number in float64; None if there are none.

    Example:
        >>> merged_integers(["1", "1.0", "9007199254740992", "9007199254740993"])
        ('9007199254740992', '9007199254740993')
    """
    first: dict[float, str] = {}
    for text in texts:
        if text.lstrip("+-").isdecimal() and abs(float(text)) >= _EXACT:
            other = first.setdefault(float(text), text)
            if int(other) != int(text):
                return other, text
    return None


@noun(kw_only=False)
class DatePart:
    """One numeric feature of a date.

    Args:
        column: the column with the dates.
        order: the order of year, month and day: a key of `PATTERNS`.
        part: one of `PARTS`.
    """

    column: str
    order: str
    part: str


@dataclass(frozen=True)
class _DatesOfTexts:
    """What texts are as dates."""

    order: str | None  # of year, month and day; None if fewer than four fifths are dates, or it is ambiguous
    is_ambiguous: bool  # they are dates whose day and month are ambiguous
    parts: Mapping[str, Mapping[str, np.ndarray]]  # order -> the parts of the dates, as far as they were needed


def _dates_of_texts(texts: pyarrow.StringArray, counts: np.ndarray) -> _DatesOfTexts:
    """Finds the order of the dates in a column of these distinct texts, each in a number of rows.

    If day and month are ambiguous, dates with dots are read day first; with other separators the order is None.
    """
    is_value = compute.not_equal(compute.utf8_lower(texts), NO_VALUE).to_numpy(zero_copy_only=False)
    counts = np.where(is_value, counts, 0)
    total = int(counts.sum())
    parts: dict[str, dict[str, np.ndarray]] = {}
    fits: dict[str, int] = {}
    for order in PATTERNS:
        parts[order] = date_parts(texts, order)
        fits[order] = int(counts[~np.isnan(parts[order][YEAR])].sum())
        if fits[order] == total and order == "ymd":  # A date with the year first is none in another order.
            return _DatesOfTexts(order if total else None, False, parts)
    most = max(fits.values())
    if most < _MOSTLY_DATES * total:
        return _DatesOfTexts(None, False, parts)
    best = [order for order in PATTERNS if fits[order] == most]
    if len(best) == 1:
        return _DatesOfTexts(best[0], False, parts)
    has_dot = compute.match_substring(texts, ".").to_numpy(zero_copy_only=False)
    is_dotted = counts[has_dot].sum() > total / 2
    return _DatesOfTexts("dmy" if is_dotted else None, not is_dotted, parts)


def date_parts(texts: Sequence[str | None] | pyarrow.StringArray, order: str) -> dict[str, np.ndarray]:
    """All parts of dates, float64; NaN for missing or invalid dates."""
    pattern, groups = PATTERNS[order]
    counter = iter(range(1, 10))
    named = re.sub(r"\((?!\?)", lambda _: f"(?P<group_{next(counter)}>", pattern)
    given = texts if isinstance(texts, pyarrow.Array) else pyarrow.array(texts, pyarrow.string())
    found = compute.extract_regex(compute.utf8_trim_whitespace(given), f"^{named}$")
    if found.null_count == len(found):
        return dict.fromkeys(PARTS, np.full(len(found), np.nan))
    fields = []
    for group in (*groups, HOUR_GROUP, MINUTE_GROUP):
        digits = compute.struct_field(found, f"group_{group}")
        digits = compute.if_else(compute.equal(digits, ""), "0", digits).fill_null("0")
        fields.append(compute.cast(digits, pyarrow.int64()).to_numpy(zero_copy_only=False))
    is_date = is_valid(*fields)
    parts = get_parts(fields, sine=np.sin, cosine=np.cos)
    return {name: np.where(is_date, np.asarray(values, np.float64), np.nan) for name, values in parts.items()}


def is_valid(year: Any, month: Any, day: Any, hour: Any, minute: Any) -> Any:
    """Which of these are valid dates and times; the arguments are integer arrays of NumPy or TensorFlow."""
    month_length = _days(year + month // 12, month % 12 + 1, 1) - _days(year, month, 1)
    is_day = (year > 0) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= month_length)
    return is_day & (hour < 24) & (minute < 60)


def get_parts(
    fields: Sequence[Any],
    *,
    sine: Callable[[Any], Any],
    cosine: Callable[[Any], Any],
    as_float: Callable[[Any], Any] = lambda values: values,
) -> dict[str, Any]:
    """All parts of dates, in the order of `PARTS`.

    Args:
        fields: year, month, day, hour and minute: integer arrays of NumPy or TensorFlow.
        sine, cosine, as_float: functions of NumPy or TensorFlow.

    Monday is weekday 0. The season is cyclic over a year and the time of day over a day, so that end and beginning are
    close.
    """
    year, month, day, hour, minute = fields
    days = _days(year, month, day)
    season = as_float(days - _days(year, year * 0 + 1, 1)) * (2 * math.pi / _DAYS_OF_YEAR)
    time = as_float(hour * 60 + minute) * (2 * math.pi / (60 * _HOURS))
    values = (year, month, day, (days + 3) % 7, sine(season), cosine(season), sine(time), cosine(time))
    return dict(zip(PARTS, values, strict=True))


def _days(year: Any, month: Any, day: Any) -> Any:
    """Days since January 1, 1970 in the Gregorian calendar; years start in March, so that leap days are at the end."""
    since_march = (month + 9) % 12
    year = year - since_march // 10
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * since_march + 2) // 5 + day - 719469
