"""`TableEncoding`: how rows of a table become a model's inputs, as JSON; `TableGaps`: rows unlike any training row."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Self

import numpy as np

from tfaccel.data.tables.column_kinds import (
    CATEGORICAL,
    DATE,
    NUMERIC,
    TRUTH_VALUES,
    as_numbers,
    check_dates,
    lost_in_float32,
)
from tfaccel.data.tables.table import Column, DatePart, Table
from tfaccel.errors import DataError
from tfaccel.records import Record
from tfaccel.remote import readable_path
from tfaccel.short_repr import noun

MISSING_CODE, OTHER_CODE, NUM_SPECIAL_CODES = 0, 1, 2

HASH_KEY = (0, 0)
_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_State = list[np.ndarray]

_NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


@noun(kw_only=False)
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


@noun(kw_only=False)
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
            if not column.is_text:  # as a Parquet file has numbers and truth values: they have no spelling
                values = by_value(self.categories)
                names = [name if name in known else values.get(Decimal(name), name) for name in names]
            found = [known.get(name, OTHER_CODE) for name in names]
        return np.array([*found, MISSING_CODE], dtype=np.int32)[places]


def by_value(texts: Iterable[str]) -> dict[Decimal, str]:
    """Number -> the first text that is this number; truth values are 1 and 0. Texts such as 007 are names.

    Example:
        >>> by_value(["False", "TRUE", "2.50", "007", "red"])
        {Decimal('0'): 'False', Decimal('1'): 'TRUE', Decimal('2.50'): '2.50'}
    """
    found: dict[Decimal, str] = {}
    for text in texts:
        number = TRUTH_VALUES.get(text.lower(), text)
        if _NUMBER.fullmatch(number):
            found.setdefault(Decimal(number), text)
    return found


@noun
class TableEncoding(Record):
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

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The encoding in a `preprocessing.json`.

        Raises:
            DataError: if the file cannot be read.
        """
        try:
            return cls.from_json(json.loads(readable_path(path, DataError).read_text(encoding="utf-8")))
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


def hash_buckets(texts: Sequence[str], num_buckets: int) -> np.ndarray:
    """The bucket of each text: its SipHash-2-4 modulo the number of buckets, as int64 of shape (num_texts,).

    The same text has the same bucket on every machine and in every process. In TensorFlow this is
    `tf.strings.to_hash_bucket_strong(texts, num_buckets, key=[0, 0])`.

    Source: Aumasson and Bernstein, SipHash: a fast short-input PRF, 2012, https://eprint.iacr.org/2012/351

    Example:
        >>> hash_buckets(["anna", "bert", "anna"], 1000).tolist()
        [970, 413, 970]
    """
    encoded = [text.encode("utf-8") for text in texts]
    if not encoded:
        return np.zeros(0, np.int64)
    words, num_words = _words(encoded)
    low, high = (np.full(len(encoded), part, np.uint64) for part in HASH_KEY)
    state = [one ^ np.uint64(start) for one, start in zip((low, high, low, high), _START, strict=True)]
    for place in range(words.shape[1]):
        going = place < num_words
        part = [one[going] for one in state]
        part[3] = part[3] ^ words[going, place]
        part = _rounds(part, 2)
        part[0] = part[0] ^ words[going, place]
        for one, new in zip(state, part, strict=True):
            one[going] = new
    state[2] = state[2] ^ np.uint64(0xFF)
    first, second, third, fourth = _rounds(state, 4)
    return ((first ^ second ^ third ^ fourth) % np.uint64(num_buckets)).astype(np.int64)


def _words(encoded: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """The texts in words of eight bytes, the last one with the text's length; and the number of words of each."""
    lengths = np.array([len(text) for text in encoded])
    num_words = lengths // 8 + 1
    width = 8 * int(num_words.max())
    content = np.frombuffer(b"".join(text.ljust(width, b"\0") for text in encoded), "<u8")
    words = content.reshape(len(encoded), -1).astype(np.uint64)
    words[np.arange(len(encoded)), num_words - 1] |= (lengths.astype(np.uint64) & np.uint64(0xFF)) << np.uint64(56)
    return words, num_words


def _rounds(state: _State, count: int) -> _State:
    a, b, c, d = state
    for _ in range(count):
        a, c = a + b, c + d
        b, d = _turned(b, 13) ^ a, _turned(d, 16) ^ c
        a, c = _turned(a, 32) + d, c + b
        d, b = _turned(d, 21) ^ a, _turned(b, 17) ^ c
        c = _turned(c, 32)
    return [a, b, c, d]


def _turned(values: np.ndarray, bits: int) -> np.ndarray:
    """The values with their bits rotated to the left."""
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


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
        wrong = {"lacks {!r} (no training row does)": self.missing, "has an unseen {!r}": self.unseen}
        for text, get_rows in wrong.items():
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
