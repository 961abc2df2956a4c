"""`Table`: named columns of equal length, as read from a file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Args:
        name: its name in the header.
        values: float64 with NaN for missing values; or texts, an object array with None for missing values.
    """

    name: str
    values: np.ndarray

    @property
    def is_text(self) -> bool:
        """Whether the values are texts, which may be unparsed numbers."""
        return self.values.dtype == object

    @property
    def missing(self) -> np.ndarray:
        """A boolean mask of the rows without a value, of shape (num_rows,)."""
        return np.array([v is None for v in self.values], dtype=bool) if self.is_text else np.isnan(self.values)

    def texts(self) -> np.ndarray:
        """The values as texts, None for missing values; integers are written without a decimal point.

        Example:
            >>> Column("age", np.array([3.0, np.nan, 2.5])).texts().tolist()
            ['3', None, '2.5']
        """
        if self.is_text:
            return self.values
        return np.array([None if np.isnan(v) else f"{v:.15g}" for v in self.values.tolist()], dtype=object)


@dataclass(frozen=True)
class Table:
    """Named columns of equal length.

    Args:
        source: where it is from, for messages: a path, or the name of a set.
        columns: at least one.
        places: int64, where each row is in the file: its line in a CSV file, its number from 1 in a Parquet file; None
            if it was not read from one.

    Example:
        >>> table = Table("made up", (Column("age", np.array([30.0, 41.0])),))
        >>> table.num_rows, table.names
        (2, ('age',))
    """

    source: str
    columns: tuple[Column, ...]
    places: np.ndarray | None = None

    def __post_init__(self) -> None:
        lengths = {len(column.values) for column in self.columns}
        if len(lengths) != 1:
            raise DataError(f"A table needs columns of one length. Received, from {self.source}: {sorted(lengths)}.")

    @property
    def num_rows(self) -> int:
        """Rows below the header."""
        return len(self.columns[0].values)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """The column of this name.

        Raises:
            DataError: if there is none; the message suggests the closest name.
        """
        for column in self.columns:
            if column.name == name:
                return column
        hint = did_you_mean(name, self.names) or f" Columns: {', '.join(self.names)}."
        raise DataError(f"{self.source} has no column {name!r}.{hint}")

    def rows(self, numbers: np.ndarray) -> Table:
        """The table of these rows, given by indices or a mask."""
        places = None if self.places is None else self.places[numbers]
        return Table(self.source, tuple(Column(column.name, column.values[numbers]) for column in self.columns), places)
