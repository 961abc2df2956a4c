"""Rows of a table with values that are not of their column's kind."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.tables.column_kinds import DATE, NUMERIC, get_kind, get_numbers
from tfaccel.data.tables.table import Column, Table
from tfaccel.errors import DataError


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
        return np.sort(get_numbers(column)[1])
    order = column.date_order if kind == DATE else None
    return np.zeros(0, np.int64) if order is None else column.wrong_dates(order)
