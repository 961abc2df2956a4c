"""`Table`: named columns of equal length, as read from a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow
from pyarrow import compute

from tfaccel.data.tables.values import (
    NO_VALUE,
    YEAR,
    DatesOfTexts,
    are_infinite,
    date_parts,
    dates_of_texts,
    finite_numbers,
    is_no_value,
    number_text,
    numbers_of_texts,
)
from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean
from tfaccel.short_repr import short_repr

_PARTS = "parts of dates"
R = TypeVar("R")


class Column:
    """One column of a table.

    Args:
        name: its name in the header.
        values: float64 with NaN for missing values; or texts, an object array with None for missing values, or an Arrow
            array of strings.
    """

    def __init__(self, name: str, values: np.ndarray | pyarrow.StringArray) -> None:
        self.name = name
        self._given = values
        self._known: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self._given)

    @cached_property
    def values(self) -> np.ndarray:
        """The values: float64, or texts as an object array."""
        if isinstance(self._given, np.ndarray):
            return self._given
        return self._given.to_numpy(zero_copy_only=False)

    @property
    def is_text(self) -> bool:
        """Whether the values are texts, which may be unparsed numbers."""
        return not isinstance(self._given, np.ndarray) or self._given.dtype == object

    @property
    def missing(self) -> np.ndarray:
        """A boolean mask of the rows without a value, of shape (num_rows,)."""
        return _as_numpy(self.strings.is_null()) if self.is_text else np.isnan(self._given)

    def texts(self) -> np.ndarray:
        """The values as texts, None for missing values; integers are written without a decimal point.

        Example:
            >>> Column("age", np.array([3.0, np.nan, 2.5])).texts().tolist()
            ['3', None, '2.5']
        """
        if self.is_text:
            return self.values
        return np.array([None if np.isnan(v) else number_text(v) for v in self._given.tolist()], dtype=object)

    @property
    def strings(self) -> pyarrow.StringArray:
        """The values as texts in an Arrow array."""
        if isinstance(self._given, np.ndarray):
            return pyarrow.array(self.texts().tolist(), pyarrow.string())
        return self._given

    @property
    def codes(self) -> tuple[np.ndarray, pyarrow.StringArray]:
        """The index of each row's text among the distinct ones, -1 if it is missing; and the distinct texts.

        Example:
            >>> places, texts = Column("kind", np.array(["cat", None, "dog", "cat"], dtype=object)).codes
            >>> places.tolist(), texts.to_pylist()
            ([0, -1, 1, 0], ['cat', 'dog'])
        """
        return self._kept("codes", self._codes)

    @property
    def num_distinct(self) -> int:
        """The number of distinct values."""
        if self.is_text:
            return len(self.codes[1])
        return len(np.unique(self._given[~np.isnan(self._given)]))

    @property
    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """The values as float64, with NaN for missing and non-numeric ones; and the rows of the non-numeric ones.

        Example:
            >>> Column("age", np.array(["3", None, "three"], dtype=object)).numbers
            (array([ 3., nan, nan]), array([2]))
        """
        if not self.is_text:
            return self._given, np.flatnonzero(np.isinf(self._given))
        return self._kept("numbers", self._numbers)

    @property
    def num_infinite(self) -> int:
        """The rows of texts that are infinite numbers, such as "inf" and "1e999"."""
        places, texts = self.codes
        return int(np.append(are_infinite(texts), False)[places].sum())

    @property
    def date_order(self) -> str | None:
        """The order of year, month and day in the dates of the column; None if it does not hold dates."""
        return self._dates.order

    @property
    def has_ambiguous_dates(self) -> bool:
        """Whether it holds dates whose day and month are ambiguous."""
        return self._dates.is_ambiguous

    def dates(self, order: str) -> dict[str, np.ndarray]:
        """The parts of the dates in this order, see `tfaccel.data.tables.values`; NaN where there is none."""
        return self._kept((_PARTS, order), lambda: self._date_parts(order))

    def wrong_dates(self, order: str) -> np.ndarray:
        """The rows of texts that are neither dates in this order nor missing."""
        unread = np.flatnonzero(np.isnan(self.dates(order)[YEAR]))
        return np.array([row for row in unread.tolist() if not is_no_value(self.texts()[row])], np.int64)

    def rows(self, numbers: np.ndarray) -> Column:
        """The column of these rows, given by indices or a mask."""
        if isinstance(self._given, np.ndarray):
            return Column(self.name, self._given[numbers])
        choice = pyarrow.array(numbers)
        found = Column(self.name, self._given.filter(choice) if numbers.dtype == bool else self._given.take(choice))
        for key, parts in self._known.items():
            if key[0] == _PARTS:  # slow to read again
                found._known[key] = {name: part[numbers] for name, part in parts.items()}
        return found

    def without_no_value(self) -> Column:
        """The column with its texts "none", which among numbers and dates mean this, as missing values."""
        if not self.is_text:
            return self
        is_none = compute.equal(compute.utf8_lower(self.strings), NO_VALUE)
        if not compute.any(is_none).as_py():
            return self
        return Column(self.name, compute.if_else(is_none, None, self.strings))

    def _codes(self) -> tuple[np.ndarray, pyarrow.StringArray]:
        encoded = self.strings.dictionary_encode()
        return _as_numpy(encoded.indices.fill_null(-1)), encoded.dictionary

    def _numbers(self) -> tuple[np.ndarray, np.ndarray]:
        strings = self.strings
        present = strings.slice(int(np.argmin(self.missing)), 1) if len(strings) else strings
        if not len(numbers_of_texts(present)[1]):  # A cast that fails takes long.
            try:
                return finite_numbers(compute.cast(strings, pyarrow.float64()), self.missing)
            except pyarrow.ArrowInvalid:
                pass
        places, texts = self.codes
        numbers, wrong = numbers_of_texts(texts)
        is_wrong = np.zeros(len(texts) + 1, bool)
        is_wrong[wrong] = True
        return np.append(numbers, np.nan)[places], np.flatnonzero(is_wrong[places])

    @property
    def _dates(self) -> DatesOfTexts:
        def find() -> DatesOfTexts:
            places, texts = self.codes
            return dates_of_texts(texts, np.bincount(places[places >= 0], minlength=len(texts)))

        return self._kept("dates", find)

    def _date_parts(self, order: str) -> dict[str, np.ndarray]:
        places, texts = self.codes
        known = self._known["dates"].parts.get(order) if "dates" in self._known else None
        parts = date_parts(texts, order) if known is None else known
        return {name: np.append(part, np.nan)[places] for name, part in parts.items()}

    def _kept(self, key: Any, make: Callable[[], R]) -> R:
        """What `make` returns; it is called once, unless the values are an array of NumPy, which can be changed."""
        if isinstance(self._given, np.ndarray):
            return make()
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


def _as_numpy(array: pyarrow.Array) -> np.ndarray:
    return array.to_numpy(zero_copy_only=False)


@short_repr
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
        lengths = {len(column) for column in self.columns}
        if len(lengths) != 1:
            raise DataError(f"A table needs columns of one length. Received, from {self.source}: {sorted(lengths)}.")

    @property
    def num_rows(self) -> int:
        """Rows below the header."""
        return len(self.columns[0])

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
        if numbers.dtype == bool and numbers.all():
            return self
        places = None if self.places is None else self.places[numbers]
        return Table(self.source, tuple(column.rows(numbers) for column in self.columns), places)
