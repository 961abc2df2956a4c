"""`Catalogue`: the users and items of a table of interactions with their features, to score items for a user."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from tfaccel.data.tables.encoding import TableEncoding
from tfaccel.data.tables.table import Column, Table
from tfaccel.errors import DataError
from tfaccel.local_path import local_path
from tfaccel.short_repr import short_repr


@short_repr
@dataclass(frozen=True)
class Catalogue:
    """Users and items with their features, and how pairs of them become a model's inputs.

    Args:
        encoding: how rows with the columns of both tables become inputs.
        users, items: a row for each id, which is in the first column.

    Example:
        >>> from tfaccel.data import generated_clicks
        >>> catalogue = generated_clicks(num_users=100, num_items=30, num_interactions=2000).catalogue
        >>> catalogue.pairs("u7")["categories"].shape, sorted(catalogue.item_ids)[0]
        ((30, 4), 'i0')
    """

    encoding: TableEncoding
    users: Table
    items: Table

    @classmethod
    def of(cls, table: Table, encoding: TableEncoding, of_users: Sequence[str], of_items: Sequence[str]) -> Self:
        """The users and items in a table of interactions, in their order there; features are those of the last row.

        Args:
            table: the interactions.
            encoding: how its rows become inputs.
            of_users, of_items: the columns of each, ids first.
        """
        users, items = (
            _last_rows(table, [n for n in names if n in encoding.sources]) for names in (of_users, of_items)
        )
        return cls(encoding, users, items)

    @property
    def item_ids(self) -> list[str]:
        """The ids of all items."""
        ids: list[str] = self.items.columns[0].texts().tolist()
        return ids

    def pairs(self, user: str) -> dict[str, np.ndarray]:
        """The inputs for a user and each item, in the order of `item_ids`. A new user has an id without features."""
        known = np.flatnonzero(self.users.columns[0].texts() == user)
        count = self.items.num_rows
        if len(known):
            row = self.users.rows(known[:1])
        else:
            row = self.users.rows(np.zeros(1, np.int64))
            row = replace(row, columns=(_column(row.names[0], [user]), *map(_missing, row.columns[1:])))
        repeated = row.rows(np.zeros(count, np.int64))
        return self.encoding.encode(Table("the catalogue", (*repeated.columns, *self.items.columns)))

    def best(self, scores: np.ndarray, count: int) -> list[tuple[str, float]]:
        """The items with the highest scores, best first, and their scores.

        Args:
            scores: of the items, in the order of `item_ids`.
            count: how many items.

        Raises:
            DataError: if `count` is below 1.
        """
        if count < 1:
            raise DataError(f"`count` must be at least 1. Received: {count}.")
        ids = self.item_ids
        return [(ids[item], float(scores[item])) for item in np.argsort(-scores, kind="stable")[:count]]

    def to_json(self) -> dict[str, Any]:
        """The catalogue as JSON-serializable data."""
        return {"encoding": self.encoding.to_json(), "users": _to_json(self.users), "items": _to_json(self.items)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The catalogue that `to_json` returned."""
        tables = [Table(name, tuple(_column(**column) for column in data[name])) for name in ("users", "items")]
        return cls(TableEncoding.from_json(data["encoding"]), *tables)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The catalogue in a JSON file.

        Raises:
            DataError: if the file is missing or does not hold a catalogue.
        """
        try:
            return cls.from_json(json.loads(local_path(path, DataError).read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            raise DataError(f"There is no file {path}. Was this folder left by a finished run?") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} holds no catalogue of users and items: {error}.") from error


def _last_rows(table: Table, names: Sequence[str]) -> Table:
    """The last row of each id, which is in the first of the named columns."""
    last: dict[str, int] = {}
    for row, text in enumerate(table.column(names[0]).texts().tolist()):
        if text is not None:
            last[text] = row
    rows = np.array(list(last.values()), np.int64)
    return Table(table.source, tuple(map(table.column, names))).rows(rows)


def _to_json(table: Table) -> list[dict[str, Any]]:
    return [
        {
            "name": column.name,
            "values": [
                None if gap else value for gap, value in zip(column.missing, column.values.tolist(), strict=True)
            ],
            "is_text": column.is_text,
        }
        for column in table.columns
    ]


def _column(name: str, values: Sequence[Any], is_text: bool = True) -> Column:
    array = np.empty(len(values), dtype=object) if is_text else np.full(len(values), np.nan)
    array[:] = values
    return Column(name, array)


def _missing(column: Column) -> Column:
    return _column(column.name, [None] if column.is_text else [np.nan], column.is_text)
