"""Interactions of users with items, clicks or ratings: read from tables, and encoded for large tables of embeddings.

`generated_clicks` are drawn with known probabilities, so that the best possible result is known.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.class_labels import TEST_FRACTION
from tfaccel.data.epochs import Batches
from tfaccel.data.in_memory import TextBatches
from tfaccel.data.raw_input import TableInput
from tfaccel.data.tables.column_kinds import CATEGORICAL, as_numbers, kinds_from_text
from tfaccel.data.tables.encoding import MISSING_CODE, OTHER_CODE, TableEncoding
from tfaccel.data.tables.table import Column, Table
from tfaccel.data.tables.table_data import read_tables
from tfaccel.data.tables.tabular_set import TableOptions, TabularSet, make_tabular_set
from tfaccel.errors import DataError
from tfaccel.remote import readable_path
from tfaccel.short_repr import noun

NUM_USERS, NUM_ITEMS, NUM_INTERACTIONS = 1000, 500, 250_000
RANK, NUM_REGIONS, NUM_GENRES = 4, 6, 10
_ZIPF_USERS, _ZIPF_ITEMS = 0.8, 0.9  # the n-th user or item takes part n^-exponent as often as the first
_MEAN, _PRICE_EFFECT, _BIAS_DEVIATION, _TASTE = -0.5, -0.5, 0.7, 1.0
_SHARED = 0.5  # fraction of the variance of factors that a region or a genre has in common
_SEED = 0
KINDS = {"region": CATEGORICAL, "genre": CATEGORICAL}


@dataclass(frozen=True, kw_only=True)
class InteractionOptions:
    """How to read a table of interactions, with one row for each.

    Args:
        user_column, item_column: the columns with the ids, which may be any text.
        label_column: the column with numbers, such as 0 and 1, or ratings.
        positive_from: a label from this number on is a click.
        user_features, item_features: further columns that describe users and items, separated by commas.
        column_kinds: the kinds of these, to override the inferred ones; see
            `tfaccel.data.tables.tabular_set.TableOptions`.
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


@noun(kw_only=False)
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
            gaps = [_column(one.name, [None], one.is_text) for one in row.columns[1:]]
            row = replace(row, columns=(_column(row.names[0], [user]), *gaps))
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
            return cls.from_json(json.loads(readable_path(path, DataError).read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            raise DataError(f"There is no file {path}. Was this folder left by a finished run?") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} holds no catalogue of users and items: {error}.") from error


def _last_rows(table: Table, names: Sequence[str]) -> Table:
    """The last row of each id, which is in the first of the named columns."""
    texts = table.column(names[0]).texts().tolist()
    last = {text: row for row, text in enumerate(texts) if text is not None}
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
    return Column(name, np.array(values, object if is_text else np.float64))


@noun
class InteractionSet:
    """Interactions prepared for training.

    Args:
        table: the encoded rows; targets are 1 for a click and 0 otherwise.
        user_names, item_names: the columns of the encoding that describe users and items, ids first.
        catalogue: all users and items.
        true_probabilities: the probability that each click of the test rows was drawn with; None if it is unknown.
    """

    table: TabularSet
    user_names: tuple[str, ...]
    item_names: tuple[str, ...]
    catalogue: Catalogue
    true_probabilities: np.ndarray | None = None


def read_interactions(
    data_dir: str | os.PathLike[str], *, bad_data: BadData | None = None, **options: Any
) -> InteractionSet:
    """The interactions in a CSV or Parquet file, or in a folder with the files `train` and `test`.

    Of one file, a fifth of the rows, always the same, is held out for testing. Rows without a label are dropped.

    Args:
        data_dir: the file or folder.
        bad_data: what to do with damaged rows; None for `BadData()`, which raises an error.
        **options: fields of `tfaccel.data.interactions.InteractionOptions`.

    Raises:
        DataError: if the table cannot be used; the message names the column, and the row if there is one.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "views.csv")
        ...     _ = path.write_text("user,item,click\\n" + "anna,tea,1\\nbert,cake,0\\n" * 10)
        ...     read_interactions(path).table.report.num_test_rows
        4
    """
    how = InteractionOptions(**options)
    columns = (*how.columns_of_users, *how.columns_of_items, how.label_column)
    table, test_table = read_tables(
        data_dir, how.table_options, classification=False, columns=columns, bad_data=bad_data
    )
    return _make_interaction_set(table, how, test_table=test_table)


def _make_interaction_set(
    table: Table,
    options: InteractionOptions,
    *,
    test_table: Table | None = None,
    true_probabilities: np.ndarray | None = None,
) -> InteractionSet:
    """Prepares interactions for training. The tables are those of `make_tabular_set`.

    Raises:
        DataError: if ids or labels cannot be used.
    """
    tables = [_with_clicks(one, options) for one in (table, test_table) if one is not None]
    for one in tables:
        _check_clicks(one.column(options.label_column).values, f"the rows of {one.source}", options)
    for name in (options.user_column, options.item_column):
        distinct = {text for text in table.column(name).texts().tolist() if text is not None}
        if len(distinct) < 2:
            found = f"{distinct.pop()!r} only" if distinct else "none"
            raise DataError(f"Column {name!r} of {table.source} must have at least two ids. Received: {found}.")
    prepared = make_tabular_set(
        tables[0],
        options.table_options,
        classification=False,
        test_table=tables[1] if len(tables) > 1 else None,
    )
    for part, name in ((prepared.train, "training"), (prepared.test, "test")):
        _check_clicks(part.targets, f"the {name} rows of {table.source}", options)
    encoding = prepared.encoding
    sources = [(column.name, column.source) for column in encoding.numeric]
    sources = [*((column.name, column.name) for column in encoding.categorical), *sources]
    of_users, of_items = options.columns_of_users, options.columns_of_items
    return InteractionSet(
        table=prepared,
        user_names=tuple(name for name, source in sources if source in of_users),
        item_names=tuple(name for name, source in sources if source in of_items),
        catalogue=Catalogue.of(table, encoding, of_users, of_items),
        true_probabilities=true_probabilities,
    )


def _with_clicks(table: Table, options: InteractionOptions) -> Table:
    """The table with 1, 0 and NaN, if missing, as labels."""
    name = options.label_column
    labels = as_numbers(table.column(name), table.source, advice=": a label is a number, such as 0 and 1 or a rating")
    clicks = np.where(np.isnan(labels), np.nan, labels >= options.positive_from)
    columns = (Column(name, clicks) if column.name == name else column for column in table.columns)
    return replace(table, columns=tuple(columns))


def _check_clicks(clicks: np.ndarray, rows: str, options: InteractionOptions) -> None:
    found = np.unique(clicks[~np.isnan(clicks)])
    if len(found) < 2:
        labels = "no label" if not len(found) else "only such labels" if found[0] else "only lower labels"
        raise DataError(
            f"Labels of at least positive_from={options.positive_from:g} are clicks, and {rows} need both clicks and "
            f"others in column {options.label_column!r}. Received: {labels}. Set positive_from, or add rows."
        )


class InteractionData(Batches):
    """Batches of interactions: a dictionary of inputs, and 1 or 0, of shape (num_rows, 1). The set is `source`.

    Inputs are `categories`, the rows in the embedding tables of users, items and features of them, int32; and
    `numbers`, float32, if there are features that are numbers.

    Args:
        interactions: an `InteractionSet`.
        id_dropout: fraction of the ids in training, of users and of items, that are replaced by the code of unknown
            ids, at random in each epoch, so that its row in the table is trained. Hashed ids are never unknown.

    Raises:
        DataError: if `id_dropout` is not a fraction.

    Example:
        >>> from tfaccel.data import generated_clicks
        >>> clicks = InteractionData(generated_clicks(num_users=100, num_items=30, num_interactions=2000))
        >>> inputs, labels = next(iter(clicks.train_data(256, seed=0, epoch=0)))
        >>> inputs["categories"].shape, labels.shape
        (TensorShape([256, 4]), TensorShape([256, 1]))
    """

    source: InteractionSet

    def __init__(self, interactions: InteractionSet, *, id_dropout: float = 0.0) -> None:
        if not 0 <= id_dropout < 1:
            raise DataError(f"`id_dropout` must be a number from 0 to below 1. Received: id_dropout={id_dropout!r}.")
        encoding, ids = interactions.table.encoding, (interactions.user_names[0], interactions.item_names[0])
        may_drop = [id_dropout > 0 and one.name in ids and one.num_buckets is None for one in encoding.categorical]
        columns = zip(encoding.categorical, may_drop, strict=True)
        trained = tuple(replace(one, has_rare=True) if drops else one for one, drops in columns)
        self._rates = id_dropout * np.array(may_drop)
        super().__init__(
            interactions,
            self._batches,
            num_train_examples=len(interactions.table.train.targets),
            several_epochs=True,
            takes_every=True,
            raw_input=TableInput.of(replace(encoding, categorical=trained)),
        )

    def _batches(self) -> Any:
        parts = (self.source.table.train, self.source.table.test)
        train, test = ((dict(part.inputs), part.targets[:, np.newaxis]) for part in parts)
        return TextBatches(train, test, change=self._with_unknown_ids if self._rates.any() else None)

    def _with_unknown_ids(
        self, examples: tuple[dict[str, np.ndarray], np.ndarray], generator: np.random.Generator
    ) -> Any:
        inputs, labels = examples
        codes = inputs["categories"]
        dropped = (generator.random(codes.shape) < self._rates) & (codes != MISSING_CODE)
        return {**inputs, "categories": np.where(dropped, np.int32(OTHER_CODE), codes)}, labels


def generated_clicks(
    *,
    num_users: int = NUM_USERS,
    num_items: int = NUM_ITEMS,
    num_interactions: int = NUM_INTERACTIONS,
    **options: Any,
) -> InteractionSet:
    r"""Interactions drawn from a model with known answer, always the same.

    User $u$ is shown item $i$ and clicks with the probability
    $\sigma(\mu + a_u + b_i + c p_i + x_u \cdot y_i)$, with the price $p_i$, and factors $x_u$ and $y_i$ of rank 4
    around those of the user's region and the item's genre. Users and items are drawn independently with frequencies
    that fall as a power of their rank (Zipf's law). A fifth of the interactions is for testing; the probabilities of
    its clicks are `true_probabilities`.

    Args:
        num_users, num_items: how many there are.
        num_interactions: rows, training and test.
        **options: `min_rows` and `num_buckets` of `InteractionOptions`.

    Raises:
        DataError: if there are fewer than 2 users or items, or fewer than 100 interactions.

    Example:
        >>> clicks = generated_clicks(num_users=100, num_items=30, num_interactions=2000)
        >>> clicks.user_names, clicks.item_names, len(clicks.true_probabilities)
        (('user', 'region'), ('item', 'genre', 'price'), 400)
    """
    train, test, probabilities = generated_tables(num_users, num_items, num_interactions)
    how = InteractionOptions(user_features="region", item_features="genre,price", column_kinds=KINDS, **options)
    return _make_interaction_set(train, how, test_table=test, true_probabilities=probabilities)


def generated_tables(num_users: int, num_items: int, num_interactions: int) -> tuple[Table, Table, np.ndarray]:
    """The training and the test rows of `generated_clicks`, and the probability of each click of the test rows."""
    if min(num_users, num_items) < 2 or num_interactions < 100:
        raise DataError(
            "At least 2 users, 2 items and 100 interactions are generated. Received: "
            f"num_users={num_users}, num_items={num_items}, num_interactions={num_interactions}."
        )
    generator = np.random.default_rng(_SEED)
    region, of_users = _factors(generator, num_users, NUM_REGIONS)
    genre, of_items = _factors(generator, num_items, NUM_GENRES)
    price = generator.normal(size=num_items)
    user_bias = _BIAS_DEVIATION * generator.normal(size=num_users)
    item_bias = _BIAS_DEVIATION * generator.normal(size=num_items) + _PRICE_EFFECT * price
    users = _drawn(generator, num_users, _ZIPF_USERS, num_interactions)
    items = _drawn(generator, num_items, _ZIPF_ITEMS, num_interactions)
    logits = _MEAN + user_bias[users] + item_bias[items] + _TASTE * np.sum(of_users[users] * of_items[items], axis=1)
    probabilities = 1 / (1 + np.exp(-logits))
    table = Table(
        "generated clicks",
        (
            Column("user", _texts("u", num_users)[users]),
            Column("region", _texts("region ", NUM_REGIONS)[region][users]),
            Column("item", _texts("i", num_items)[items]),
            Column("genre", _texts("genre ", NUM_GENRES)[genre][items]),
            Column("price", np.round(20 * np.exp(0.3 * price), 2)[items]),
            Column("click", (generator.random(num_interactions) < probabilities).astype(np.float64)),
        ),
    )
    rows = np.arange(num_interactions)
    num_train = num_interactions - round(TEST_FRACTION * num_interactions)
    return table.rows(rows[:num_train]), table.rows(rows[num_train:]), probabilities[num_train:]


def _factors(generator: np.random.Generator, count: int, num_groups: int) -> tuple[np.ndarray, np.ndarray]:
    """The group of each user or item, and factors with the group's as their mean."""
    group = generator.integers(num_groups, size=count)
    of_groups, own = generator.normal(size=(num_groups, RANK)), generator.normal(size=(count, RANK))
    return group, (np.sqrt(_SHARED) * of_groups[group] + np.sqrt(1 - _SHARED) * own) / RANK**0.25


def _drawn(generator: np.random.Generator, count: int, exponent: float, num_interactions: int) -> np.ndarray:
    frequencies = np.arange(1, count + 1) ** -exponent
    return generator.choice(count, num_interactions, p=frequencies / frequencies.sum())


def _texts(prefix: str, count: int) -> np.ndarray:
    return np.array([f"{prefix}{number}" for number in range(count)], dtype=object)
