"""Date columns: their formats, and the numeric features derived from them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow
from pyarrow import compute

from tfaccel.data.tables.values import NO_VALUE
from tfaccel.short_repr import short_repr

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


def date_order(texts: Sequence[str | None]) -> str | None:
    """The order of year, month and day in these dates; None if they are not dates, or ambiguous.

    Example:
        >>> date_order(["2024-05-31", "2024-06-01T14:00"]), date_order(["05/31/2024"]), date_order(["5/6/2024", "tea"])
        ('ymd', 'mdy', None)
    """
    return _get_dates(texts).order


def could_be_either(texts: Sequence[str | None]) -> bool:
    """Whether these are dates whose day and month are ambiguous.

    Example:
        >>> could_be_either(["05/06/2024", "07/08/2024"])
        True
    """
    return _get_dates(texts).is_ambiguous


def _get_dates(texts: Sequence[str | None]) -> DatesOfTexts:
    present = pyarrow.array(texts, pyarrow.string()).drop_null()
    return dates_of_texts(present, np.ones(len(present), np.int64))


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
