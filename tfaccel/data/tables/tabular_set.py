"""`TabularSet`: a table prepared for training as `TableOptions` say, in two parts, with a `TableReport` of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tfaccel.data.class_labels import are_unequal, balanced_weights, split_rows
from tfaccel.data.tables.column_kinds import (
    CATEGORICAL,
    DATE,
    IGNORED,
    NUMERIC,
    as_numbers,
    check_kinds,
    check_notations,
    class_numbers,
    get_kind,
    kinds_from_text,
    lost_in_float32,
    order_of_dates,
    target_numbers,
)
from tfaccel.data.tables.encoding import CategoricalColumn, NumericColumn, TableEncoding, by_value
from tfaccel.data.tables.table import Column, DatePart, Table
from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean
from tfaccel.records import Record
from tfaccel.short_repr import noun

_NUM_TARGET_BINS = 10  # for stratified splits in regression
_MOST_NAMED = 10

CLASS_WEIGHTS = ("auto", "balanced", "none")


@noun(kw_only=False)
class TabularPart:
    """Rows of a table as arrays.

    Args:
        inputs: the model's inputs, see `TableEncoding.encode`.
        targets: the class index of each row (int64), or the number to predict (float32).
    """

    inputs: Mapping[str, np.ndarray]
    targets: np.ndarray


@noun
class TabularSet:
    """A table prepared for training.

    Args:
        encoding: how rows become inputs, computed from the training rows only.
        train, test: the two parts.
        class_weights: the weight of a training row of each class; None if all are equal.
        report: the preprocessing of the table.
    """

    encoding: TableEncoding
    train: TabularPart
    test: TabularPart
    class_weights: np.ndarray | None
    report: TableReport


@dataclass
class _Columns:
    """The used columns of a table with parsed numbers, the reasons to ignore others, and the date orders."""

    table: Table
    kinds: dict[str, str]
    ignored: dict[str, str] = field(default_factory=dict)
    orders: dict[str, str] = field(default_factory=dict)


def make_tabular_set(
    table: Table, options: TableOptions, *, classification: bool, test_table: Table | None = None
) -> TabularSet:
    """Prepares a table for training.

    Rows without a target are dropped. Without a test table, a stratified fifth of the rows, always the same, is held
    out for testing. Medians, scales and categories are those of the training rows.

    Args:
        table: the training rows, or all rows if there is no test table.
        options: how to read it; `options.target` must be given.
        classification: whether the target is a class; otherwise it is a number.
        test_table: the test rows.

    Raises:
        DataError: if the target column is missing, a class has a single row, a numeric column holds text, or no column
            is usable.

    Example:
        >>> numbers, kinds = np.arange(20.0), np.array(["cat", "dog"] * 10, dtype=object)
        >>> table = Table("pets.csv", (Column("weight", numbers), Column("kind", kinds)))
        >>> pets = make_tabular_set(table, TableOptions(target="kind"), classification=True)
        >>> len(pets.train.targets), pets.encoding.class_names
        (16, ('cat', 'dog'))
    """
    target = table.column(options.target or "").name
    check_kinds(options.kinds, table)
    columns = _read_columns(table, target, options.kinds)
    names, targets, labelled = _targets(table, target, classification, smallest=2 if test_table is None else 1)
    train_rows = columns.table.rows(labelled)
    num_without = int(np.sum(~labelled))
    if test_table is None:
        train, test = split_rows(targets if classification else target_bins(targets))
        test_rows, test_targets = train_rows.rows(test), targets[test]
        train_rows, targets = train_rows.rows(train), targets[train]
    else:
        test_rows = _with_numbers(test_table, columns.kinds)
        _, test_targets, labelled = _targets(test_table, target, classification, known=names)
        test_rows = test_rows.rows(labelled)
        num_without += int(np.sum(~labelled))
    encoding, rare = _encoding(train_rows, columns, options, target, names)
    if test_table is not None:
        _check_spellings(encoding, train_rows, test_rows)
    counts = np.bincount(targets, minlength=len(names)) if classification else np.zeros(0, np.int64)
    wanted = options.class_weights if classification else "none"
    is_weighted = wanted == "balanced" or (wanted == "auto" and are_unequal(counts))
    weights = balanced_weights(counts) if is_weighted else None
    report = TableReport(
        source=table.source,
        target=target,
        num_train_rows=len(targets),
        num_test_rows=len(test_targets),
        rows_without_target=num_without,
        numeric=tuple(c.name for c in encoding.numeric),
        categorical=tuple(c.name for c in encoding.categorical),
        ignored=columns.ignored,
        imputed=_imputed(encoding, (train_rows, test_rows)),
        merged=_merged(encoding, train_rows, table.column(target), classification),
        rare=rare,
        class_counts=dict(zip(names, counts.tolist(), strict=True)),
        class_weights={} if weights is None else dict(zip(names, weights.tolist(), strict=True)),
    )
    return TabularSet(
        encoding=encoding,
        train=TabularPart(encoding.encode(train_rows), targets),
        test=TabularPart(encoding.encode(test_rows), test_targets),
        class_weights=weights,
        report=report,
    )


def _targets(
    table: Table, target: str, classification: bool, *, known: tuple[str, ...] = (), smallest: int = 1
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """The class names, the targets of the rows that have one, and which rows these are."""
    column = table.column(target)
    labelled = ~(column if classification else column.without_no_value()).missing
    if not classification:
        return (), target_numbers(column, table.source)[labelled], labelled
    return *class_numbers(column.rows(labelled), table.source, known=known, smallest=smallest), labelled


def _read_columns(table: Table, target: str, given: Mapping[str, str]) -> _Columns:
    kinds, ignored, taken_for_texts = {}, {}, []
    for column in table.columns:
        if column.name == target:
            continue
        kind = given[column.name] if column.name in given else get_kind(column)
        if kind in (CATEGORICAL, IGNORED) and column.name not in given:
            taken_for_texts.append(column)
        distinct = _num_distinct(column, kind)
        if kind == IGNORED:
            ignored[column.name] = _why_ignored(column, is_given=column.name in given)
        elif distinct < 2:
            if kind == NUMERIC:
                as_numbers(column, table.source)  # refuses integers that are one number in float64
            ignored[column.name] = "all its values are equal" if distinct else "it holds no value"
        else:
            kinds[column.name] = kind
    check_notations(taken_for_texts, table.source)
    orders = {name: order_of_dates(table.column(name), table.source) for name, kind in kinds.items() if kind == DATE}
    return _Columns(_with_numbers(table, kinds), kinds, ignored, orders)


def _num_distinct(column: Column, kind: str) -> int:
    """The number of distinct values; of numbers at most 2, which is fast."""
    numbers, wrong = column.numbers
    if kind != NUMERIC or len(wrong):
        return column.num_distinct
    known = numbers[~np.isnan(numbers)]
    return len(np.unique([known.min(), known.max()])) if len(known) else 0


def _why_ignored(column: Column, *, is_given: bool) -> str:
    if is_given:
        return "set by you"
    if column.has_ambiguous_dates:
        return "day and month of its dates are ambiguous; write them as 2024-05-31"
    return "nearly all its texts are distinct"


def _date_columns(column: Column, order: str) -> list[NumericColumn]:
    """The parts of dates that vary among the training rows; the first indicates missing dates."""
    found: list[NumericColumn] = []
    for part, numbers in column.dates(order).items():
        if np.nanmax(numbers) > np.nanmin(numbers):
            made = NumericColumn.of(f"{column.name} ({part})", numbers, date=DatePart(column.name, order, part))
            found.append(replace(made, has_missing=made.has_missing and not found))
    return found


def _with_numbers(table: Table, kinds: Mapping[str, str]) -> Table:
    """The columns that have a kind, numeric ones as numbers; a table without usable columns keeps them all."""
    columns = {name: table.column(name) for name in kinds}
    for name, kind in kinds.items():
        if kind == NUMERIC:
            columns[name] = Column(name, as_numbers(columns[name], table.source))
        elif kind == DATE:
            columns[name] = columns[name].without_no_value()
    return Table(table.source, tuple(columns.values()) or table.columns)


def _check_spellings(encoding: TableEncoding, train_rows: Table, test_rows: Table) -> None:
    """Raises DataError if test rows have a category of the training rows, but spell it in another way."""
    for name in (column.name for column in encoding.categorical):
        test = test_rows.column(name)
        if not test.is_text:  # numbers have no spelling
            continue
        of_training = train_rows.column(name).codes[1].to_pylist()
        values = by_value(of_training)
        for value, text in by_value(set(test.codes[1].to_pylist()) - set(of_training)).items():
            if value in values:
                raise DataError(
                    f"Column {name!r} of {test_rows.source} has {text!r}, and the training rows have "
                    f"{values[value]!r}, which is the same. Write it in one way."
                )


def _encoding(
    rows: Table, columns: _Columns, options: TableOptions, target: str, class_names: tuple[str, ...]
) -> tuple[TableEncoding, dict[str, tuple[str, ...]]]:
    """How rows become inputs, and the rare categories of each column."""
    numeric, categorical, rare = [], [], {}
    for name, kind in columns.kinds.items():
        column = rows.column(name)
        has_missing = bool(column.missing.any())
        if column.missing.all():
            columns.ignored[name] = "no training row has a value"
        elif name in options.num_buckets:
            num_buckets = options.num_buckets[name]
            categorical.append(CategoricalColumn(name, (), has_missing, has_rare=False, num_buckets=num_buckets))
        elif kind == CATEGORICAL:
            places, strings = column.codes
            texts = strings.to_pylist()
            counts = dict(zip(texts, np.bincount(places[places >= 0], minlength=len(texts)).tolist(), strict=True))
            kept = tuple(sorted(text for text, count in counts.items() if count >= options.min_category_rows))
            others = tuple(sorted(counts.keys() - set(kept)))
            categorical.append(CategoricalColumn(name, kept, has_missing, has_rare=bool(others)))
            if others:
                rare[name] = others
        elif kind == DATE:
            parts = _date_columns(column, columns.orders[name])
            numeric += parts
            if not parts:
                columns.ignored[name] = "all its dates in training rows are equal"
        else:
            numeric.append(NumericColumn.of(name, column.values))
    if not numeric and not categorical:
        raise DataError(_no_column(columns, target))
    encoding = TableEncoding(
        numeric=tuple(numeric), categorical=tuple(categorical), target=target, class_names=class_names
    )
    return encoding, rare


def _no_column(columns: _Columns, target: str) -> str:
    text = f"There is no column of use beside the target {target!r} in {columns.table.source}"
    if columns.ignored:
        reasons = "; ".join(f"{name!r}: {reason}" for name, reason in list(columns.ignored.items())[:_MOST_NAMED])
        more = len(columns.ignored) - _MOST_NAMED
        return f"{text}. Not used: {reasons}{f'; and {more} more' if more > 0 else ''}."
    hint = " Separate its fields by commas, semicolons, tabs or bars, not by spaces." if len(target.split()) > 1 else ""
    return f"{text}: it has one column only.{hint}"


def _merged(encoding: TableEncoding, rows: Table, target: Column, classification: bool) -> dict[str, int]:
    numbers = {one.name: rows.column(one.name).values - one.offset for one in encoding.numeric if one.date is None}
    if not classification:
        numbers[target.name] = target.numbers[0]
    counts = {name: lost_in_float32(values)[0] for name, values in numbers.items()}
    return {name: count for name, count in counts.items() if count}


def _imputed(encoding: TableEncoding, parts: tuple[Table, Table]) -> dict[str, dict[str, object]]:
    values = {column.name: f"the median, {column.center:g}" for column in encoding.numeric}
    values |= {column.name: "a separate category" for column in encoding.categorical}
    sources = {column.name: column.source for column in encoding.numeric}
    counts = {name: sum(int(part.column(sources.get(name, name)).missing.sum()) for part in parts) for name in values}
    return {name: {"value": values[name], "num_rows": count} for name, count in counts.items() if count}


def target_bins(targets: np.ndarray) -> np.ndarray:
    """The quantile bin of each row's target, for stratified splits; every bin has at least two rows.

    Example:
        >>> target_bins(np.arange(40.0)).tolist() == np.repeat([0, 1, 2, 3], 10).tolist()
        True
    """
    num_bins = max(1, min(_NUM_TARGET_BINS, len(targets) // 10))
    edges = np.quantile(targets, np.linspace(0, 1, num_bins + 1)[1:-1])
    bins = np.searchsorted(edges, targets)
    return bins if np.bincount(bins)[np.unique(bins)].min() > 1 else np.zeros(len(targets), np.int64)


@noun
class TableReport(Record):
    """The preprocessing of a table before training; saved in the run as `data_report.json`.

    Args:
        source: where the table is from.
        target: the column to predict.
        num_train_rows, num_test_rows: rows of the two parts.
        rows_without_target: rows that were dropped for lack of a target.
        numeric, categorical: the columns that are used.
        ignored: column -> why it is not used.
        imputed: column -> {"value": the replacement of missing values, "num_rows": number of such rows in both parts}.
        merged: column or target -> number of distinct values that float32 merges with others, though its error is
            small beside their variation.
        rare: column -> the categories that are merged because few training rows have them.
        class_counts: class -> training rows; empty for regression.
        class_weights: class -> weight of each of its rows; empty if all weights are equal.
    """

    source: str
    target: str
    num_train_rows: int
    num_test_rows: int
    rows_without_target: int = 0
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    ignored: Mapping[str, str] = field(default_factory=dict, hash=False)
    imputed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    merged: Mapping[str, int] = field(default_factory=dict, hash=False)
    rare: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    class_counts: Mapping[str, int] = field(default_factory=dict, hash=False)
    class_weights: Mapping[str, float] = field(default_factory=dict, hash=False)

    def lines(self) -> list[str]:
        """The report as text: one line for each preprocessing step.

        Example:
            >>> TableReport(source="pets.csv", target="kind", num_train_rows=8, num_test_rows=2).lines()
            ['pets.csv: 8 rows to train on, 2 to test with, 0 numeric and 0 categorical columns.']
        """
        num_columns = f"{len(self.numeric)} numeric and {len(self.categorical)} categorical columns"
        rows = f"{self.num_train_rows} rows to train on, {self.num_test_rows} to test with"
        lines = [f"{self.source}: {rows}, {num_columns}."]
        if self.rows_without_target:
            lines.append(f"Dropped {self.rows_without_target} rows without a value of {self.target!r}.")
        lines += [f"Column {name!r} is not used: {reason}." for name, reason in self.ignored.items()]
        lines += [
            f"Column {name!r} has missing values in {done['num_rows']} rows; they become {done['value']}."
            for name, done in self.imputed.items()
        ]
        lines += [
            f"Column {name!r}: {len(rare)} rare categories are merged ({', '.join(rare[:5])}"
            f"{' ...' if len(rare) > 5 else ''})."
            for name, rare in self.rare.items()
        ]
        lines += [
            f"Column {name!r}: {count} of its distinct values differ from others by less than float32 can hold."
            for name, count in self.merged.items()
        ]
        if self.class_weights:
            weights = ", ".join(f"{name} {weight:.3g}" for name, weight in self.class_weights.items())
            lines.append(f"The classes are imbalanced; class weights: {weights}.")
        return lines


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How to read a user's table.

    Args:
        target: the column to predict.
        column_kinds: column -> "numeric", "categorical", "date" or "ignored", to override the inferred kinds; or a
            string such as "zip=categorical,id=ignored".
        encoding: Python's name of the encoding of CSV files.
        class_weights: "balanced": all classes have equal weight; "none": all rows do; "auto": balanced if the largest
            class has more than three times the rows of the smallest.
        min_category_rows: categories in fewer training rows are merged as rare.
        num_buckets: column of categories -> number of codes that its categories share by their hash.

    Raises:
        DataError: if a value is invalid.

    Example:
        >>> TableOptions(target="price", column_kinds="zip=categorical").column_kinds
        {'zip': 'categorical'}
    """

    target: str | None = None
    column_kinds: Mapping[str, str] | str = field(default_factory=dict, hash=False)
    encoding: str = "utf-8"
    class_weights: str = "auto"
    min_category_rows: int = 5
    num_buckets: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        kinds: Any = self.column_kinds
        object.__setattr__(self, "column_kinds", kinds_from_text(kinds) if isinstance(kinds, str) else dict(kinds))
        if self.class_weights not in CLASS_WEIGHTS:
            hint = did_you_mean(str(self.class_weights), CLASS_WEIGHTS) or f" Values: {', '.join(CLASS_WEIGHTS)}."
            raise DataError(f"There are no class weights {self.class_weights!r}.{hint}")
        if type(self.min_category_rows) is not int or self.min_category_rows < 1:
            raise DataError(
                "`min_category_rows` must be a whole number of at least 1. "
                f"Received: min_category_rows={self.min_category_rows!r}."
            )

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds of columns that the user gave."""
        return dict(self.column_kinds)  # type: ignore[arg-type]
