"""Numbers and dates in notations that are not read, named so that users can rewrite them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from pyarrow import compute

from tfaccel.data.tables.table import Column
from tfaccel.data.tables.values import numbers_of_texts
from tfaccel.errors import DataError

_DIGITS = (
    r"(?:[0-9]{1,3}(?:[.,'’ \x{a0}\x{202f}][0-9]{3})+(?:[.,][0-9]+)?|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}(?:\.[0-9]+)?|"
    r"[0-9]+(?:[.,][0-9]+)?)"
)
_UNIT = r"(?:\p{Sc}|%|‰|USD|EUR|GBP|CHF|JPY)"
# Decimal commas, thousands separators, currencies and percentages; accountants put negative numbers in parentheses.
_NUMBER = rf"^[+\-−]?\(?{_UNIT}?\s*[+\-−]?{_DIGITS}\s*{_UNIT}?\)?$"
_YEAR, _DAY, _GAP = r"(?:[0-9]{2}|[0-9]{4})", r"(?:[0-2]?[0-9]|3[01])", r"(?:[-/., ]+)"
# 5/31/24; and dates whose time is not read, such as 5/31/2024 2:00 PM and 2024-05-31 14:00:00,5.
_DATE = (
    rf"^(?:{_DAY}[-/.] ?{_DAY}[-/.] ?{_YEAR}|[0-9]{{4}}[-/. 年] ?{_DAY}[-/. 月] ?{_DAY}日?|"
    r"(?:19|20)[0-9]{6}T[0-9]{4,6})(?:[-T ].*)?$"
)
# 5-May-2024, 05MAY24, May 5, 2024, May-24, Sun, 5 May 2024 14:00:00 GMT, and Sun May 5 14:00:00 2024.
_MONTH = (
    r"(?i:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    r"nov(?:ember)?|dec(?:ember)?)\.?"
)
_WEEKDAY = r"(?:(?i:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\.?,? +)?"
_NAMED_DAY = r"[0-9]{1,2}(?:st|nd|rd|th)?"
_NAMED_DATE = (
    rf"^{_WEEKDAY}(?:{_NAMED_DAY}{_GAP}?{_MONTH}{_GAP}?{_YEAR}|{_MONTH}{_GAP}(?:{_NAMED_DAY}{_GAP})?{_YEAR}|"
    rf"{_MONTH} +{_NAMED_DAY} +[0-9]{{1,2}}:[0-9:.]+ +(?:[A-Z]+ +)?{_YEAR})(?:[T :].*)?$"
)
_KINDS = {_NUMBER: "numbers", _DATE: "dates", _NAMED_DATE: "dates"}
_MOSTLY = 0.8  # fraction of the rows
_MOST_NAMED = 5
_MOST_SPELLINGS = 8  # distinct texts of a column of truth values
NOTATIONS_ADVICE = "Write numbers as 1234.5, dates as 2024-05-31 and truth values in one way"
NUMBERS_ADVICE = "Write numbers with a decimal point, and without thousands separators and units"


def unread_notation(column: Column) -> str:
    """What a column of texts holds if it is numbers or dates in a notation that is not read; else "".

    Example:
        >>> unread_notation(Column("price", np.array(["1.234,50", "2,5", None], dtype=object)))
        "numbers such as '1.234,50'"
        >>> unread_notation(Column("color", np.array(["red", "5 %"], dtype=object)))
        ''
    """
    if not column.is_text:
        return ""
    places, texts = column.codes
    counts = np.bincount(places[places >= 0], minlength=len(texts))
    is_number = ~np.isnan(numbers_of_texts(texts)[0])
    spelled = spelled_twice(texts.to_pylist()) if len(texts) <= _MOST_SPELLINGS else None
    if spelled is not None:
        return f"truth values such as {spelled[0]!r} and {spelled[1]!r}"
    for pattern, kind in _KINDS.items():
        if kind == "dates" and column.has_ambiguous_dates:
            continue
        fits = compute.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)
        unread = np.flatnonzero(fits & ~is_number)
        if len(unread) and counts[fits].sum() >= _MOSTLY * counts.sum():
            return f"{kind} such as {texts[int(unread[0])].as_py()!r}"
    return ""


def spelled_twice(texts: Iterable[str]) -> tuple[str, str] | None:
    """Two of these texts that are the same truth value; None if there are none.

    Example:
        >>> spelled_twice(["True", "FALSE", "TRUE"]), spelled_twice(["true", "false"]), spelled_twice(["A", "a"])
        (('True', 'TRUE'), None, None)
    """
    first: dict[str, str] = {}
    for text in texts:
        if text.lower() in ("true", "false") and first.setdefault(text.lower(), text) != text:
            return first[text.lower()], text
    return None


def check_notations(columns: Iterable[Column], source: str) -> None:
    """Raises DataError for columns of numbers or dates in a notation that is not read.

    Args:
        columns: those that are taken for texts.
        source: where they are from, for messages.

    Example:
        >>> check_notations([Column("rate", np.array(["5 %", "7 %"], dtype=object))], "t.csv")
        Traceback (most recent call last):
        ...
        tfaccel.errors.DataError: t.csv holds numbers such as '5 %' in column 'rate'. Write numbers as 1234.5, \
dates as 2024-05-31 and truth values in one way, or say what the column is: --column_kinds=rate=categorical, or \
=ignored.
    """
    found = {column.name: notation for column in columns if (notation := unread_notation(column))}
    if found:
        named = [f"{notation} in column {name!r}" for name, notation in list(found.items())[:_MOST_NAMED]]
        more = f" and {len(found) - len(named)} more columns" if len(found) > len(named) else ""
        raise DataError(
            f"{source} holds {', '.join(named)}{more}. {NOTATIONS_ADVICE}, or say what the column is: "
            f"--column_kinds={next(iter(found))}=categorical, or =ignored."
        )
