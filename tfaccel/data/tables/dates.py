"""Date columns: their formats, and the numeric features derived from them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_TIME = r"(?:[T ]\s*([0-9]{1,2}):([0-9]{2})(?::[0-9]{2}(?:\.[0-9]+)?)?\s*(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?"
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

    def numbers(self, texts: Sequence[str | None]) -> np.ndarray:
        """The part of each date; NaN for missing or invalid dates.

        Example:
            >>> DatePart("day", "dmy", "weekday").numbers(["31.05.2024", None])
            array([ 4., nan])
        """
        return date_parts(texts, self.order)[self.part]


def date_order(texts: Sequence[str | None]) -> str | None:
    """The order of year, month and day in the dates of a column; None if it does not hold dates.

    If day and month are ambiguous, dates with dots are read day first; with other separators the result is None.

    Example:
        >>> date_order(["2024-05-31", "2024-06-01T14:00"]), date_order(["05/31/2024"]), date_order(["5/6/2024", "tea"])
        ('ymd', 'mdy', None)
    """
    present = [text for text in texts if text is not None]
    if not present:
        return None
    fits = {order: int(np.sum(~np.isnan(date_parts(present, order)[YEAR]))) for order in PATTERNS}
    most = max(fits.values())
    if most < _MOSTLY_DATES * len(present):
        return None
    best = [order for order in PATTERNS if fits[order] == most]
    if len(best) == 1:
        return best[0]
    return "dmy" if sum("." in text for text in present) > len(present) / 2 else None


def could_be_either(texts: Sequence[str | None]) -> bool:
    """Whether a column holds dates whose day and month are ambiguous.

    Example:
        >>> could_be_either(["05/06/2024", "07/08/2024"])
        True
    """
    present = [text for text in texts if text is not None]
    if not present or date_order(present) is not None:
        return False
    return int(np.sum(~np.isnan(date_parts(present, "dmy")[YEAR]))) >= _MOSTLY_DATES * len(present)


def date_parts(texts: Sequence[str | None], order: str) -> dict[str, np.ndarray]:
    """All parts of dates, float64; NaN for missing or invalid dates."""
    pattern, groups = PATTERNS[order]
    fields = np.zeros((5, len(texts)), np.int64)
    for row, text in enumerate(texts):
        found = re.fullmatch(pattern, text.strip()) if text is not None else None
        if found is not None:
            numbers = (*groups, HOUR_GROUP, MINUTE_GROUP)
            fields[:, row] = [int(found[number] or 0) for number in numbers]
    is_date = is_valid(*fields)
    parts = parts_of(list(fields), sine=np.sin, cosine=np.cos)
    return {name: np.where(is_date, np.asarray(values, np.float64), np.nan) for name, values in parts.items()}


def is_valid(year: Any, month: Any, day: Any, hour: Any, minute: Any) -> Any:
    """Which of these are valid dates and times; the arguments are integer arrays of NumPy or TensorFlow."""
    month_length = _days(year + month // 12, month % 12 + 1, 1) - _days(year, month, 1)
    is_day = (year > 0) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= month_length)
    return is_day & (hour < 24) & (minute < 60)


def parts_of(
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
