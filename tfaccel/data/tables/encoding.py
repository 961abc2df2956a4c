"""`TableEncoding`: how rows of a table become a model's inputs, saved as JSON with the model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from tfaccel.data.tables.column_kinds import CATEGORICAL, DATE, NUMERIC, as_numbers, check_dates
from tfaccel.data.tables.dates import DatePart
from tfaccel.data.tables.hashing import hash_buckets
from tfaccel.data.tables.precision import lost_in_float32
from tfaccel.data.tables.table import Column, Table
from tfaccel.errors import DataError
from tfaccel.local_path import local_path
from tfaccel.short_repr import short_repr

MISSING_CODE, OTHER_CODE, NUM_SPECIAL_CODES = 0, 1, 2


@short_repr
@dataclass(frozen=True)
class NumericColumn:
    """A column of numbers: the model takes them unscaled, less their offset, with NaN for missing values.

    Args:
        name: the column's name.
        center: the median of the training rows, which replaces missing values.
        scale: the standard deviation of the training rows, above 0.
        has_missing: whether training rows have missing values, so that the model gets a feature for them.
        date: the part of the dates in another column that the numbers are; None for a column of numbers.
        offset: subtracted in float64, before the numbers become the model's float32. It is the center if float32 would
            merge the numbers as they are, such as times in milliseconds, and 0 otherwise.
    """

    name: str
    center: float
    scale: float
    has_missing: bool
    date: DatePart | None = None
    offset: float = 0.0

    @property
    def source(self) -> str:
        """The column of the table that the numbers are from."""
        return self.name if self.date is None else self.date.column

    @classmethod
    def of(cls, name: str, values: np.ndarray, *, date: DatePart | None = None) -> Self:
        """The description of a column, computed from its training rows, which are not all missing."""
        missing = np.isnan(values)
        present = values[~missing]
        center = float(np.median(present))
        offset = center if any(lost_in_float32(present)) else 0.0
        return cls(name, center, float(np.std(present)) or 1.0, bool(missing.any()), date, offset)


@short_repr
@dataclass(frozen=True)
class CategoricalColumn:
    """A column of categories with integer codes: 0 for missing, 1 for rare and unknown ones, then the others.

    Args:
        name: the column's name.
        categories: those with their own code, starting at 2.
        has_missing: whether training rows have missing values, so that their code is trained.
        has_rare: whether training rows have rare categories, so that the code of unknown ones is trained.
        num_buckets: the number of codes, from 2 on, that all categories share by their hash; None for a code for each.
    """

    name: str
    categories: tuple[str, ...]
    has_missing: bool = True
    has_rare: bool = True
    num_buckets: int | None = None

    @property
    def num_codes(self) -> int:
        """The number of codes."""
        return (len(self.categories) if self.num_buckets is None else self.num_buckets) + NUM_SPECIAL_CODES

    def codes(self, column: Column) -> np.ndarray:
        """The codes of the categories: int32, of shape (num_rows,).

        Example:
            >>> colors = CategoricalColumn("color", ("blue", "red"))
            >>> colors.codes(Column("color", np.array(["red", None, "pink"], dtype=object))).tolist()
            [3, 0, 1]
        """
        places, texts = column.codes
        names = texts.to_pylist()
        if self.num_buckets is not None:
            found = (hash_buckets(names, self.num_buckets) + NUM_SPECIAL_CODES).tolist()
        else:
            known = {name: code for code, name in enumerate(self.categories, NUM_SPECIAL_CODES)}
            found = [known.get(name, OTHER_CODE) for name in names]
        return np.array([*found, MISSING_CODE], dtype=np.int32)[places]


@short_repr
@dataclass(frozen=True, kw_only=True)
class TableEncoding:
    """How rows of a table become a model's inputs, and what its outputs mean.

    Args:
        numeric: the columns of numbers, in the order of the model's input `numbers`.
        categorical: the columns of categories, in the order of the model's input `categories`.
        target: the column to predict.
        class_names: the classes, in the order of the model's outputs; empty for regression.

    Raises:
        DataError: if there are no columns.

    Example:
        >>> encoding = TableEncoding(numeric=(NumericColumn("age", 40.0, 9.0, False),), categorical=(), target="pays")
        >>> encoding.encode(Table("made up", (Column("age", np.array(["30", None], dtype=object)),)))
        {'numbers': array([[30.],
               [nan]], dtype=float32)}
    """

    numeric: tuple[NumericColumn, ...]
    categorical: tuple[CategoricalColumn, ...]
    target: str
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.numeric and not self.categorical:
            raise DataError(f"There is no column of use beside the target {self.target!r}.")

    def encode(self, table: Table) -> dict[str, np.ndarray]:
        """The model's inputs for the rows of a table, which may have more columns than needed.

        Returns:
            `numbers`: float32, of shape (num_rows, num_numeric_columns); and `categories`: int32, of shape (num_rows,
            num_categorical_columns); each only if there are such columns.

        Raises:
            DataError: if a column is missing, or a numeric one holds text (row and column are named).
        """
        inputs = {}
        absent = [name for name in self.sources if name not in table.names]
        if len(absent) > 1:
            others = ", ".join(map(repr, absent[1:]))
            raise DataError(
                f"{table.source} has no column {absent[0]!r}. The model takes these too, which are not "
                f"there: {others}. Columns: {', '.join(table.names)}."
            )
        if self.numeric:
            columns = [_numbers(column, table) for column in self.numeric]
            inputs["numbers"] = np.stack(columns, axis=1).astype(np.float32)
        if self.categorical:
            codes = [column.codes(table.column(column.name)) for column in self.categorical]
            inputs["categories"] = np.stack(codes, axis=1)
        return inputs

    @property
    def sources(self) -> dict[str, str]:
        """The required columns of a table -> their kinds; the categorical ones come last."""
        first = {column.source: NUMERIC if column.date is None else DATE for column in self.numeric}
        return {**first, **{column.name: CATEGORICAL for column in self.categorical}}

    def to_json(self) -> dict[str, Any]:
        """The encoding as JSON-serializable data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The encoding that `to_json` returned."""
        return cls(
            numeric=tuple(_numeric_of_json(column) for column in data["numeric"]),
            categorical=tuple(
                CategoricalColumn(**{**c, "categories": tuple(c["categories"])}) for c in data["categorical"]
            ),
            target=data["target"],
            class_names=tuple(data["class_names"]),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The encoding in a `preprocessing.json`.

        Raises:
            DataError: if the file cannot be read.
        """
        try:
            return cls.from_json(json.loads(local_path(path, DataError).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"Cannot read how tables are encoded from {path}: {error}.") from error


def _numbers(column: NumericColumn, table: Table) -> np.ndarray:
    """The numbers of a column, or of the dates in one."""
    source = table.column(column.source)
    if column.date is None:
        given = as_numbers(source, table.source, advice="; the model was trained on numbers there")
        numbers = given - column.offset
        with np.errstate(over="ignore"):
            too_large = np.flatnonzero(np.isinf(numbers.astype(np.float32)))
        if len(too_large):
            raise DataError(
                f"Column {column.name!r} of {table.source} has {given[too_large[0]]:g} in row {too_large[0] + 1} "
                "below the header, which float32 cannot hold. Fix the row."
            )
        return numbers
    check_dates(source, column.date.order, table.source, advice="; the model was trained on dates there")
    return source.dates(column.date.order)[column.date.part]


def _numeric_of_json(data: Mapping[str, Any]) -> NumericColumn:
    date = data.get("date")
    return NumericColumn(**{**data, "date": None if date is None else DatePart(**date)})
