"""The values of a table's fields: which texts denote missing ones, and texts as numbers and as dates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow
from pyarrow import compute

from tfaccel.short_repr import short_repr

# Markers of a missing value; in others' capitals, such as Na and Null, they are symbols and names. Among numbers and
# dates, NO_VALUE marks one too, in any capitals; among texts it is a value.
_WORDS = ("na", "n/a", "nan", "null", "-nan", "+nan", "#n/a", "#na", "#n/a n/a", "<na>")
_OF_C = ("-nan(ind)", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN")  # which programs in C write on Windows
MISSING = ("", "?", *_WORDS, *map(str.upper, _WORDS), "NaN", "-NaN", "+NaN", *_OF_C)
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


@short_repr
@dataclass(frozen=True)
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


@short_repr
@dataclass(frozen=True)
class DatesOfTexts:
    """What texts are as dates.

    Args:
        order: the order of year, month and day; None if fewer than four fifths are dates, or it is ambiguous.
        is_ambiguous: whether they are dates whose day and month are ambiguous.
        parts: order -> the parts of the dates, as far as they were needed.
    """

    order: str | None
    is_ambiguous: bool
    parts: Mapping[str, Mapping[str, np.ndarray]]


def dates_of_texts(texts: pyarrow.StringArray, counts: np.ndarray) -> DatesOfTexts:
    """Finds the order of the dates in a column.

    If day and month are ambiguous, dates with dots are read day first; with other separators the order is None.

    Args:
        texts: the distinct texts of the column.
        counts: how many rows have each.
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
            return DatesOfTexts(order if total else None, False, parts)
    most = max(fits.values())
    if most < _MOSTLY_DATES * total:
        return DatesOfTexts(None, False, parts)
    best = [order for order in PATTERNS if fits[order] == most]
    if len(best) == 1:
        return DatesOfTexts(best[0], False, parts)
    has_dot = compute.match_substring(texts, ".").to_numpy(zero_copy_only=False)
    is_dotted = counts[has_dot].sum() > total / 2
    return DatesOfTexts("dmy" if is_dotted else None, not is_dotted, parts)


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
