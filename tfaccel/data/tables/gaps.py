"""Rows of a table unlike any training row: missing values in complete columns, and unseen categories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tfaccel.data.tables.column_kinds import CATEGORICAL
from tfaccel.data.tables.encoding import OTHER_CODE, TableEncoding
from tfaccel.data.tables.table import Table


@dataclass(frozen=True)
class TableGaps:
    """Values in a table's rows that a model was not trained on.

    Args:
        empty: rows without a value in any column that the model takes: booleans.
        missing: column -> rows without its value, although all training rows had one.
        unseen: column -> rows with an unseen category, if the training rows had no rare categories.
        rare: column -> rows with an unseen category, which gets the code of the rare ones in training.
        fill: column -> the replacement of such a value if the row is predicted anyway.
    """

    empty: np.ndarray
    missing: Mapping[str, np.ndarray]
    unseen: Mapping[str, np.ndarray]
    rare: Mapping[str, np.ndarray]
    fill: Mapping[str, str]

    def reasons(self) -> dict[int, str]:
        """Row -> what in it the model was not trained on."""
        found: dict[int, list[str]] = {}
        for get_rows, text in (
            (self.missing, "lacks {!r} (no training row does)"),
            (self.unseen, "has an unseen {!r}"),
        ):
            for name, rows in get_rows.items():
                for row in np.flatnonzero(rows & ~self.empty).tolist():
                    found.setdefault(row, []).append(text.format(name))
        text = "it has no value in any column that the model takes"
        of_empty = dict.fromkeys(np.flatnonzero(self.empty).tolist(), text)
        return of_empty | {row: f"it {' and '.join(texts)}" for row, texts in found.items()}

    def lines(self, *, are_filled: bool) -> list[str]:
        """For each column, the number of affected rows, and how they are handled.

        Args:
            are_filled: whether these rows are predicted anyway.
        """
        found = []
        for get_rows, text in (
            (self.missing, "is missing in {} of {} rows, but in no training row"),
            (self.unseen, "has an unseen category in {} of {} rows"),
        ):
            for name, count in self._counts(get_rows).items():
                becomes = f"{self.fill[name]} replaces it" if are_filled else "these rows are not predicted"
                found.append(f"{name!r} {text.format(count, len(self.empty))}; {becomes}")
        for name, count in self._counts(self.rare).items():
            found.append(f"{name!r} has an unseen category in {count} of {len(self.empty)} rows; it counts as rare")
        return found

    def _counts(self, get_rows: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Column -> number of affected rows that are not empty; only columns with at least one."""
        counts = {name: int(np.sum(rows & ~self.empty)) for name, rows in get_rows.items()}
        return {name: count for name, count in counts.items() if count}


def find_gaps(encoding: TableEncoding, table: Table) -> TableGaps:
    """Finds the values in a table that no training row was like.

    Example:
        >>> from tfaccel.data.tables.table import Column
        >>> from tfaccel.data.tables.encoding import NumericColumn
        >>> encoding = TableEncoding(numeric=(NumericColumn("age", 40.0, 9.0, False),), categorical=(), target="pays")
        >>> table = Table("made up", (Column("age", np.array([30.0, np.nan])), Column("id", np.array([1.0, 2.0]))))
        >>> find_gaps(encoding, table).reasons()
        {1: 'it has no value in any column that the model takes'}
    """
    missing_of = {}
    for source, kind in encoding.sources.items():
        column = table.column(source)
        missing_of[source] = (column if kind == CATEGORICAL else column.without_no_value()).missing
    may_miss = {column.source for column in encoding.numeric if column.has_missing}
    may_miss |= {column.name for column in encoding.categorical if column.has_missing}
    fill = {column.source: f"the median, {column.center:g}," for column in encoding.numeric if column.date is None}
    fill |= {column.source: "the median date" for column in encoding.numeric if column.date is not None}
    fill |= {column.name: "a category that was not trained" for column in encoding.categorical}
    others = {column.name: column.codes(table.column(column.name)) == OTHER_CODE for column in encoding.categorical}
    has_rare = {column.name: column.has_rare for column in encoding.categorical}
    return TableGaps(
        empty=np.all(list(missing_of.values()), axis=0),
        missing={name: rows for name, rows in missing_of.items() if name not in may_miss},
        unseen={name: rows for name, rows in others.items() if not has_rare[name]},
        rare={name: rows for name, rows in others.items() if has_rare[name]},
        fill=fill,
    )
