"""The kind of each column of a table (numeric, categorical, date or ignored), and values that are not of this kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from pyarrow import compute

from tfaccel.data.bad_data import BadData
from tfaccel.data.tables.table import Column, Table
from tfaccel.data.tables.values import merged_integers, numbers_of_texts
from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean

NUMERIC, CATEGORICAL, DATE, IGNORED = KINDS = ("numeric", "categorical", "date", "ignored")
# A column is numeric if this fraction of its values parses as numbers.
_MOSTLY_NUMBERS = 0.8
# Texts that are nearly all distinct do not generalize to other rows.
_MOSTLY_DISTINCT, _FEW_ROWS = 0.9, 20

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
_MOSTLY_UNREAD = 0.8  # fraction of the rows
_MOST_NAMED = 5
_MOST_SPELLINGS = 8  # distinct texts of a column of truth values
NOTATIONS_ADVICE = "Write numbers as 1234.5, dates as 2024-05-31 and truth values in one way"
NUMBERS_ADVICE = "Write numbers with a decimal point, and without thousands separators and units"


def kinds_from_text(text: str) -> dict[str, str]:
    """Parses the kinds of columns from a command line.

    Raises:
        DataError: if the text does not have this form.

    Example:
        >>> kinds_from_text("zip=categorical, id=ignored")
        {'zip': 'categorical', 'id': 'ignored'}
    """
    pairs = [part.rpartition("=") for part in text.split(",") if part.strip()]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise DataError(f"Kinds of columns are written NAME=KIND,NAME=KIND. Received: {text!r}.")
    return {name.strip(): kind.strip() for name, _, kind in pairs}


def check_kinds(kinds: Mapping[str, str], table: Table) -> None:
    """Raises DataError if a kind is unknown, or given for a column that does not exist."""
    for name, kind in kinds.items():
        table.column(name)
        if kind not in KINDS:
            hint = did_you_mean(str(kind), KINDS) or f" Kinds: {', '.join(KINDS)}."
            raise DataError(f"Column {name!r} cannot be {kind!r}.{hint}")


def get_kind(column: Column) -> str:
    """The inferred kind of a column: "numeric" or "date" if most values are, "ignored" for nearly distinct texts.

    Example:
        >>> get_kind(Column("color", np.array(["red", "blue", "red"], dtype=object)))
        'categorical'
    """
    if not column.is_text:
        return NUMERIC
    strings = column.strings
    num_present = len(strings) - strings.null_count
    numbers, wrong = column.numbers
    num_finite = len(numbers) - int(np.isnan(numbers).sum())
    num_numbers = num_finite + (column.num_infinite if len(wrong) else 0)
    if num_numbers >= _MOSTLY_NUMBERS * (num_finite + len(wrong)) and (num_numbers or not num_present):
        return NUMERIC
    if column.date_order is not None:
        return DATE
    if num_present > _FEW_ROWS and column.num_distinct >= _MOSTLY_DISTINCT * num_present:
        return IGNORED
    return CATEGORICAL


def as_numbers(column: Column, source: str, *, advice: str | None = None) -> np.ndarray:
    """A numeric column as float64, with NaN for missing values.

    Args:
        column: the column.
        source: where it is from, for messages.
        advice: what to do other than fixing the row; None to suggest another kind for the column.

    Raises:
        DataError: if a value is not a finite number (row and column are named), or float64 would merge integers.

    Example:
        >>> as_numbers(Column("age", np.array(["3", "three"], dtype=object)), "pets.csv")
        Traceback (most recent call last):
        ...
        tfaccel.errors.DataError: Column 'age' of pets.csv holds numbers, but row 2 below the header has 'three'. \
Fix the row, or say what the column is: --column_kinds=age=categorical.
    """
    numbers, wrong = column.numbers
    if len(wrong):
        row = int(wrong.min())
        raise DataError(
            f"Column {column.name!r} of {source} holds numbers, but row {row + 1} below the header has "
            f"{column.values[row]!r}. Fix the row{_other_kind(column.name) if advice is None else advice}."
        )
    merged = (
        merged_integers(column.codes[1].to_pylist()) if column.is_text and np.any(np.abs(numbers) >= 2.0**53) else None
    )
    if merged is not None:
        raise DataError(
            f"Column {column.name!r} of {source} holds the integers {merged[0]} and {merged[1]}, which are one number "
            f"in float64. If it holds ids, say --column_kinds={column.name}=categorical, or =ignored. Else subtract a "
            "constant from it."
        )
    return numbers


def order_of_dates(column: Column, source: str) -> str:
    """The order of year, month and day in the dates of a column.

    Raises:
        DataError: if a value is not a date (row and column are named), or day and month are ambiguous.

    Example:
        >>> order_of_dates(Column("born", np.array(["31.05.2024", "01.06.2024"], dtype=object)), "pets.csv")
        'dmy'
    """
    order = column.date_order
    if order is None:
        texts = column.texts().tolist()
        raise DataError(
            f"Column {column.name!r} of {source} holds no dates that can be read. Write them as 2024-05-31, "
            f"2024-05-31 14:00, 31.05.2024 or 5/31/2024 (with some day after the 12th). Received: {texts[0]!r} ..."
        )
    check_dates(column, order, source, advice=_other_kind(column.name))
    return order


def check_dates(column: Column, order: str, source: str, *, advice: str = "") -> None:
    """Raises DataError, which names row and column, if a value is not a date in this order."""
    wrong = column.wrong_dates(order)
    if len(wrong):
        raise DataError(
            f"Column {column.name!r} of {source} holds dates, but row {wrong[0] + 1} below the header has "
            f"{column.texts()[wrong[0]]!r}. Fix the row{advice}."
        )


def _other_kind(name: str) -> str:
    return f", or say what the column is: --column_kinds={name}=categorical"


def kinds_of_columns(table: Table, given: Mapping[str, str]) -> dict[str, str]:
    """The kind of each column: the given one, or the inferred one.

    Example:
        >>> table = Table("pets.csv", (Column("age", np.array(["3", "4"], dtype=object)),))
        >>> kinds_of_columns(table, {}), kinds_of_columns(table, {"age": "categorical"})
        ({'age': 'numeric'}, {'age': 'categorical'})
    """
    return {column.name: given.get(column.name) or get_kind(column) for column in table.columns}


def without_bad_values(table: Table, kinds: Mapping[str, str], bad_data: BadData) -> Table:
    """The table without rows that have a text in a column of numbers, or no date in a column of dates.

    Args:
        table: the table.
        kinds: column -> its kind; columns without one are not checked.
        bad_data: what to do with such rows. With "fail" the table is returned as it is: whoever uses the column reports
            the row.

    Example:
        >>> table = Table("pets.csv", (Column("age", np.array(["3", "#4", "5"], dtype=object)),), np.array([2, 3, 4]))
        >>> bad = BadData("skip")
        >>> without_bad_values(table, {"age": "numeric"}, bad).column("age").values.tolist(), bad.num_skipped
        (['3', '5'], 1)
    """
    if not bad_data.skips:
        return table
    is_good = np.ones(table.num_rows, bool)
    for column in table.columns:
        rows = _wrong_rows(column, kinds.get(column.name))
        is_good[rows] = False
        for row in rows.tolist():
            place = row + 1 if table.places is None else int(table.places[row])
            held = "numbers" if kinds[column.name] == NUMERIC else "dates"
            text = f"column {column.name!r} holds {held}, but not {column.values[row]!r:.80}"
            bad_data.found(DataError(f"{table.source}, line {place}: {text}. Fix the row."), table.source, place)
    return table if is_good.all() else table.rows(is_good)


def _wrong_rows(column: Column, kind: str | None) -> np.ndarray:
    """The rows of values that are not of this kind."""
    if kind == NUMERIC:
        return np.sort(column.numbers[1])
    order = column.date_order if kind == DATE else None
    return np.zeros(0, np.int64) if order is None else column.wrong_dates(order)


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
        if len(unread) and counts[fits].sum() >= _MOSTLY_UNREAD * counts.sum():
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
