"""The kind of each column of a table (numeric, categorical, date or ignored), and values that are not of this kind.

The target column is one of classes or of numbers; and float32 must be able to tell numbers apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

import numpy as np
import pyarrow
from pyarrow import compute

from tfaccel.data.bad_data import BadData
from tfaccel.data.tables.table import Column, Table, merged_integers, numbers_of_texts
from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean

NUMERIC, CATEGORICAL, DATE, IGNORED = KINDS = ("numeric", "categorical", "date", "ignored")
TRUTH_VALUES = {"true": "1", "false": "0"}
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

# A target with more classes than this, and few rows for each, is treated as numeric.
_MAX_CLASSES, _FEW_ROWS_PER_CLASS = 100, 10

_MAX_ERROR = 1e-4  # as a fraction of how much numbers vary
_SMALLEST_TARGETS, _LARGEST_TARGETS = 1e-15, 1e15
_SAMPLE = 10_000  # numbers of which quartiles are taken


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
    """A numeric column as float64, with NaN for missing values; a column of nothing but truth values is 1 and 0.

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
        places, texts = column.codes
        truths = [TRUTH_VALUES.get(text.lower()) for text in texts.to_pylist()]
        if None not in truths:
            return np.array([*truths, np.nan], np.float64)[places]
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
            place = table.place(row)
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


def class_numbers(
    column: Column, source: str, *, known: tuple[str, ...] = (), smallest: int = 1
) -> tuple[tuple[str, ...], np.ndarray]:
    """The class names, and the class index of each row.

    Classes are sorted by name, or numerically if they are numbers.

    Args:
        column: the target, with a value in every row.
        source: where it is from, for messages.
        known: the classes, if they are known already.
        smallest: minimum number of rows of each class.

    Raises:
        DataError: if there are no rows, only one class, an unknown class, a class with too few rows, or far too many
            classes.

    Example:
        >>> class_numbers(Column("kind", np.array(["dog", "cat", "dog"], dtype=object)), "pets.csv")
        (('cat', 'dog'), array([1, 0, 1]))
    """
    texts = column.texts()
    if len(texts) == 0:
        raise DataError(f"No row of {source} has a value in the target column {column.name!r}.")
    found = set(texts.tolist())
    is_number = not np.isnan(column.numbers[0]).any()
    check_spellings(found, f"The target column {column.name!r} of {source}")
    names = known or tuple(sorted(found, key=lambda text: (float(text) if is_number else 0.0, text)))
    unknown = sorted(found - set(names))
    if unknown:
        hint = did_you_mean(unknown[0], names) or f" Classes: {', '.join(names[:10])}."
        raise DataError(f"{source} has the class {unknown[0]!r}, which the training rows do not have.{hint}")
    if len(names) < 2:
        raise DataError(
            f"The target column {column.name!r} of {source} must have at least two classes. "
            f"Received: {names[0]!r} only."
        )
    if len(names) > _MAX_CLASSES and len(texts) < _FEW_ROWS_PER_CLASS * len(names):
        raise DataError(
            f"The target column {column.name!r} of {source} has {len(names)} classes in {len(texts)} rows. "
            "If it holds numbers to predict, use the recipe tabular_regression."
        )
    get_number = {name: number for number, name in enumerate(names)}
    numbers = np.array([get_number[text] for text in texts.tolist()], dtype=np.int64)
    counts = np.bincount(numbers, minlength=len(names))
    if not known and counts.min() < smallest:
        raise DataError(
            f"The class {names[int(counts.argmin())]!r} of column {column.name!r} in {source} has one row; it needs at "
            "least two, one to train on and one to test with. Add rows, or remove the class."
        )
    return names, numbers


def check_spellings(classes: set[str], where: str) -> None:
    """Raises DataError if two classes are the same truth value or, if all are numbers, the same number.

    Example:
        >>> check_spellings({"0", "1", "1.0"}, "The column 'y' of t.csv")
        Traceback (most recent call last):
        ...
        tfaccel.errors.DataError: The column 'y' of t.csv has the classes '1' and '1.0', which are the same. Write it \
in one way.
    """
    twice = _spelled_twice(classes)
    if twice is not None:
        raise DataError(
            f"{where} has the classes {twice[0]!r} and {twice[1]!r}, which are the same. Write it in one way."
        )


def _spelled_twice(classes: set[str]) -> tuple[str, str] | None:
    if len(numbers_of_texts(pyarrow.array(sorted(classes), pyarrow.string()))[1]):
        return spelled_twice(sorted(classes))
    first: dict[Decimal, str] = {}
    for text in sorted(classes):
        other = first.setdefault(Decimal(text), text)
        if other != text:
            return other, text
    return None


def target_numbers(column: Column, source: str) -> np.ndarray:
    """The numbers to predict, float32, with NaN for missing values.

    Raises:
        DataError: if the column holds text (row and column are named), all numbers are equal, or float32 is too coarse
            for them.

    Example:
        >>> target_numbers(Column("price", np.array(["3", None, "4.5"], dtype=object)), "pets.csv").tolist()
        [3.0, nan, 4.5]
    """
    numbers, wrong = column.numbers
    present = numbers[~np.isnan(numbers)]
    notation = unread_notation(column) if len(wrong) else ""
    if notation.startswith("numbers"):
        raise DataError(f"The target column {column.name!r} of {source} holds {notation}. {NUMBERS_ADVICE}.")
    if len(wrong) > len(present):
        raise DataError(
            f"The target column {column.name!r} of {source} holds texts, but numbers are predicted. "
            "To predict classes, use the recipe tabular_classification."
        )
    numbers = as_numbers(column, source)
    if len(np.unique(present)) < 2:
        raise DataError(f"The target column {column.name!r} of {source} must hold at least two different numbers.")
    check_float32(numbers, column.name, source)
    return numbers.astype(np.float32)


def lost_in_float32(numbers: np.ndarray) -> tuple[int, bool]:
    """How many distinct numbers float32 merges with others, and whether its error is large beside their variation.

    Decimals are counted only if the error is large: else it is no larger than that of centered and scaled numbers.

    Args:
        numbers: float64; NaN for missing values.

    Example:
        >>> day = 1.7e12 + 86_400_000 * np.arange(3)  # dates in milliseconds
        >>> lost_in_float32(day), lost_in_float32(1.7e12 + np.arange(3)), lost_in_float32(np.array([0.1, 0.2, 0.7]))
        ((0, True), (2, True), (0, False))
    """
    present = numbers[~np.isnan(numbers)]
    with np.errstate(over="ignore"):
        single = present.astype(np.float32).astype(np.float64)
    if np.array_equal(single, present):
        return 0, False
    errors = np.abs(single - present)
    low, high = np.quantile(present[:: 1 + len(present) // _SAMPLE], [0.25, 0.75])
    coarse = is_coarse(errors, float(np.std(present)))
    if not coarse:  # A few outliers may make the deviation large.
        coarse = is_coarse(errors[(present >= low) & (present <= high)], float(high - low))
    if not coarse and (present != np.round(present)).any():
        return 0, False
    distinct = np.unique(present)
    with np.errstate(over="ignore"):
        return len(distinct) - len(np.unique(distinct.astype(np.float32))), coarse


def is_coarse(errors: np.ndarray, spread: float) -> bool:
    """Whether rounding is large beside how much numbers vary."""
    return bool(errors.max(initial=0.0) > _MAX_ERROR * spread > 0)


def check_float32(numbers: np.ndarray, name: str, source: str) -> int:
    """Checks numbers that a model predicts; returns how many distinct ones float32 merges with others.

    Args:
        numbers: float64; NaN for missing values.
        name: of their column, for messages.
        source: where it is from, for messages.

    Raises:
        DataError: if the error of float32 is large beside their variation, or float32 cannot hold their squares.

    Example:
        >>> check_float32(1.7e12 + np.arange(3.0), "time", "t.csv")
        Traceback (most recent call last):
        ...
        tfaccel.errors.DataError: The numbers in column 'time' of t.csv are around 1.7e+12 and vary by 0.816: float32, \
in which models predict, is too coarse for them. Subtract a constant from the column, such as 1.7e+12.
    """
    present = numbers[~np.isnan(numbers)]
    deviation = float(np.std(present)) if len(present) else 0.0
    if deviation and not _SMALLEST_TARGETS <= deviation <= _LARGEST_TARGETS:
        raise DataError(
            f"The numbers in column {name!r} of {source} vary by {deviation:.3g}. Their squares are summed in float32, "
            f"for which this is too {'small' if deviation < 1 else 'large'}. Divide the column by a constant, such as "
            f"{deviation:.0e}."
        )
    num_merged, coarse = lost_in_float32(numbers)
    if coarse:
        center = float(np.nanmedian(numbers))
        raise DataError(
            f"The numbers in column {name!r} of {source} are around {center:.3g} and vary by "
            f"{deviation:.3g}: float32, in which models predict, is too coarse for them. Subtract a "
            f"constant from the column, such as {center:.3g}."
        )
    return num_merged
