"""`TableReport`: the preprocessing of a table before training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tfaccel.short_repr import short_repr


@short_repr
@dataclass(frozen=True, kw_only=True)
class TableReport:
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

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-serializable data."""
        return asdict(self)

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
