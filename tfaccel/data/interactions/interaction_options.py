"""`InteractionOptions`: which columns of a table are users, items and their features, and what counts as a click."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfaccel.data.tables.column_kinds import CATEGORICAL, kinds_from_text
from tfaccel.data.tables.options import TableOptions
from tfaccel.errors import DataError


@dataclass(frozen=True, kw_only=True)
class InteractionOptions:
    """How to read a table of interactions, with one row for each.

    Args:
        user_column, item_column: the columns with the ids, which may be any text.
        label_column: the column with numbers, such as 0 and 1, or ratings.
        positive_from: a label from this number on is a click.
        user_features, item_features: further columns that describe users and items, separated by commas.
        column_kinds: the kinds of these, to override the inferred ones; see `tfaccel.data.tables.options.TableOptions`.
        min_rows: ids and categories in fewer training rows share one row of their embedding table, which is also that
            of ids that are new when the model is used.
        num_buckets: number of rows that the ids of users, and those of items, are hashed into; None for a row for each.
        encoding: Python's name of the encoding of CSV files.

    Raises:
        DataError: if a column has two roles, or a number is out of range.

    Example:
        >>> InteractionOptions(item_features="genre, price").columns_of_items
        ('item', 'genre', 'price')
    """

    user_column: str = "user"
    item_column: str = "item"
    label_column: str = "click"
    positive_from: float = 1.0
    user_features: str = ""
    item_features: str = ""
    column_kinds: Mapping[str, str] | str = field(default_factory=dict, hash=False)
    min_rows: int = 5
    num_buckets: int | None = None
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        names = [*self.columns_of_users, *self.columns_of_items, self.label_column]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise DataError(
                f"A column is a user, an item, a label or a feature of one of them. Received: {twice!r} twice. Name it "
                "once in user_column, item_column, label_column, user_features and item_features."
            )
        features = {*self.columns_of_users[1:], *self.columns_of_items[1:]}
        other = next((name for name in self._given_kinds if name not in features), None)
        if other is not None:
            raise DataError(
                "`column_kinds` is for the columns in user_features and item_features. "
                f"Received: column_kinds={other}={self._given_kinds[other]}. Leave {other!r} out, or add it to them."
            )
        for name in ("min_rows", "num_buckets"):
            value: Any = getattr(self, name)
            if not (value is None and name == "num_buckets") and (type(value) is not int or value < 1):
                raise DataError(f"`{name}` must be a whole number of at least 1. Received: {name}={value!r}.")
        if type(self.positive_from) not in (int, float) or not math.isfinite(self.positive_from):
            raise DataError(f"`positive_from` must be a finite number. Received: positive_from={self.positive_from!r}.")

    @property
    def columns_of_users(self) -> tuple[str, ...]:
        """The column with the ids of users, and those with their features."""
        return (self.user_column, *_names(self.user_features))

    @property
    def columns_of_items(self) -> tuple[str, ...]:
        """The column with the ids of items, and those with their features."""
        return (self.item_column, *_names(self.item_features))

    @property
    def table_options(self) -> TableOptions:
        """How the table of the columns is read and encoded."""
        ids = (self.user_column, self.item_column)
        return TableOptions(
            target=self.label_column,
            column_kinds={**self._given_kinds, **dict.fromkeys(ids, CATEGORICAL)},
            encoding=self.encoding,
            min_category_rows=self.min_rows,
            num_buckets={} if self.num_buckets is None else dict.fromkeys(ids, self.num_buckets),
        )

    @property
    def _given_kinds(self) -> dict[str, str]:
        kinds = self.column_kinds
        return kinds_from_text(kinds) if isinstance(kinds, str) else dict(kinds)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
