"""The data of a workload on interactions; and clicks drawn with known probabilities, so that the best is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tfaccel.data.epochs import Batches
from tfaccel.data.interactions.interaction_set import InteractionOptions, InteractionSet, make_interaction_set
from tfaccel.data.raw_input import TableInput
from tfaccel.data.tables.column_kinds import CATEGORICAL
from tfaccel.data.tables.encoding import MISSING_CODE, OTHER_CODE
from tfaccel.data.tables.table import Column, Table
from tfaccel.data.texts.text_data import TextBatches
from tfaccel.errors import DataError

NUM_USERS, NUM_ITEMS, NUM_INTERACTIONS = 1000, 500, 250_000
RANK, NUM_REGIONS, NUM_GENRES = 4, 6, 10
TEST_FRACTION = 0.2
_ZIPF_USERS, _ZIPF_ITEMS = 0.8, 0.9  # the n-th user or item takes part n^-exponent as often as the first
_MEAN, _PRICE_EFFECT, _BIAS_DEVIATION, _TASTE = -0.5, -0.5, 0.7, 1.0
_SHARED = 0.5  # fraction of the variance of factors that a region or a genre has in common
_SEED = 0
KINDS = {"region": CATEGORICAL, "genre": CATEGORICAL}


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
    return make_interaction_set(train, how, test_table=test, true_probabilities=probabilities)


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
    texts = np.empty(count, dtype=object)
    texts[:] = [f"{prefix}{number}" for number in range(count)]
    return texts


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
