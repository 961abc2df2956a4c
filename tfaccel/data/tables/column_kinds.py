"""The kind of each column of a table: numeric, categorical, date or ignored."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfaccel.data.tables.table import Column, Table
from tfaccel.data.tables.values import merged_integers
from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean

NUMERIC, CATEGORICAL, DATE, IGNORED = KINDS = ("numeric", "categorical", "date", "ignored")
# A column is numeric if this fraction of its values parses as numbers.
_MOSTLY_NUMBERS = 0.8
# Texts that are nearly all distinct do not generalize to other rows.
_MOSTLY_DISTINCT, _FEW_ROWS = 0.9, 20


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


def get_numbers(column: Column) -> tuple[np.ndarray, np.ndarray]:
    """A column as float64 with NaN for missing and non-numeric values, and the rows of the non-numeric ones.

    Example:
        >>> get_numbers(Column("age", np.array(["3", None, "three"], dtype=object)))
        (array([ 3., nan, nan]), array([2]))
    """
    return column.numbers


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
    numbers, wrong = get_numbers(column)
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
