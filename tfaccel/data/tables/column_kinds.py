"""Which columns of a table are numbers, which are categories or dates, and which are of no use."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfaccel.data.tables.dates import date_order, date_parts
from tfaccel.data.tables.table import Column, Table
from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean

NUMERIC, CATEGORICAL, DATE, IGNORED = KINDS = ("numeric", "categorical", "date", "ignored")
# A column of which this part can be read as numbers is meant to hold numbers.
_MOSTLY_NUMBERS = 0.8
# Texts of which nearly every row has its own say nothing about other rows.
_MOSTLY_DISTINCT, _FEW_ROWS = 0.9, 20


def kinds_from_text(text: str) -> dict[str, str]:
    """The kinds of columns as they are written on a command line.

    Raises:
        DataError: if the text is not of this form.

    Example:
        >>> kinds_from_text("zip=categorical, id=ignored")
        {'zip': 'categorical', 'id': 'ignored'}
    """
    pairs = [part.rpartition("=") for part in text.split(",") if part.strip()]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise DataError(f"Kinds of columns are written NAME=KIND,NAME=KIND. Received: {text!r}.")
    return {name.strip(): kind.strip() for name, _, kind in pairs}


def check_kinds(kinds: Mapping[str, str], table: Table) -> None:
    """Raises DataError if a kind is unknown, or given to a column that is not there."""
    for name, kind in kinds.items():
        table.column(name)
        if kind not in KINDS:
            hint = did_you_mean(str(kind), KINDS) or f" Kinds: {', '.join(KINDS)}."
            raise DataError(f"Column {name!r} cannot be {kind!r}.{hint}")


def numbers_of(column: Column) -> tuple[np.ndarray, np.ndarray]:
    """A column as float64 with NaN for what is missing or no number, and the rows that hold something else.

    Example:
        >>> numbers_of(Column("age", np.array(["3", None, "three"], dtype=object)))
        (array([ 3., nan, nan]), array([2]))
    """
    if not column.is_text:
        return column.values, np.flatnonzero(np.isinf(column.values))
    numbers = np.full(len(column.values), np.nan)
    wrong = []
    for row, text in enumerate(column.values.tolist()):
        if text is not None:
            try:
                numbers[row] = float(text)
            except ValueError:
                wrong.append(row)
    return numbers, np.array(wrong + np.flatnonzero(np.isinf(numbers)).tolist(), dtype=np.int64)


def kind_of(column: Column) -> str:
    """What a column looks like: "numeric" or "date" where most of its values are, "ignored" for nearly distinct texts.

    Example:
        >>> kind_of(Column("color", np.array(["red", "blue", "red"], dtype=object)))
        'categorical'
    """
    if not column.is_text:
        return NUMERIC
    present = [text for text in column.values.tolist() if text is not None]
    if not present:
        return NUMERIC
    _, wrong = numbers_of(column)
    if len(present) - len(wrong) >= _MOSTLY_NUMBERS * len(present):
        return NUMERIC
    if date_order(present) is not None:
        return DATE
    if len(present) > _FEW_ROWS and len(set(present)) >= _MOSTLY_DISTINCT * len(present):
        return IGNORED
    return CATEGORICAL


def as_numbers(column: Column, source: str, *, advice: str | None = None) -> np.ndarray:
    """A numeric column as float64, NaN for what is missing.

    Args:
        column: the column.
        source: where it is from, for messages.
        advice: what can be done beside mending the row; None to say that the column may be of another kind.

    Raises:
        DataError: if a value is no finite number; the message names row and column.

    Example:
        >>> as_numbers(Column("age", np.array(["3", "three"], dtype=object)), "pets.csv")
        Traceback (most recent call last):
        ...
        tfaccel.errors.DataError: Column 'age' of pets.csv holds numbers, but row 2 below the header has 'three'. \
Mend the row, or say what the column is: --column_kinds=age=categorical.
    """
    numbers, wrong = numbers_of(column)
    if len(wrong):
        row = int(wrong.min())
        raise DataError(
            f"Column {column.name!r} of {source} holds numbers, but row {row + 1} below the header has "
            f"{column.values[row]!r}. Mend the row{_other_kind(column.name) if advice is None else advice}."
        )
    return numbers


def order_of_dates(column: Column, source: str) -> str:
    """In which order the dates of a column have year, month and day.

    Raises:
        DataError: if a value is no date (row and column are named), or day and month cannot be told apart.

    Example:
        >>> order_of_dates(Column("born", np.array(["31.05.2024", "01.06.2024"], dtype=object)), "pets.csv")
        'dmy'
    """
    texts = column.texts().tolist()
    order = date_order(texts)
    if order is None:
        raise DataError(
            f"Column {column.name!r} of {source} holds no dates that can be read. Write them as 2024-05-31, "
            f"2024-05-31 14:00, 31.05.2024 or 5/31/2024 (with some day after the 12th). Received: {texts[0]!r} ..."
        )
    check_dates(column, order, source, advice=_other_kind(column.name))
    return order


def check_dates(column: Column, order: str, source: str, *, advice: str = "") -> None:
    """Raises DataError, which names row and column, for a value that is no date of this order."""
    texts = column.texts().tolist()
    is_date = ~np.isnan(date_parts(texts, order)["year"])
    wrong = [row for row, text in enumerate(texts) if text is not None and not is_date[row]]
    if wrong:
        raise DataError(
            f"Column {column.name!r} of {source} holds dates, but row {wrong[0] + 1} below the header has "
            f"{texts[wrong[0]]!r}. Mend the row{advice}."
        )


def _other_kind(name: str) -> str:
    return f", or say what the column is: --column_kinds={name}=categorical"
