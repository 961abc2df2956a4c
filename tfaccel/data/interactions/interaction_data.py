"""The data of a workload on interactions: batches of ids and features, and whether there was a click."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tfaccel.data.epochs import Batches
from tfaccel.data.interactions.interaction_set import InteractionSet
from tfaccel.data.raw_input import TableInput
from tfaccel.data.tables.encoding import MISSING_CODE, OTHER_CODE
from tfaccel.errors import DataError


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
        from tfaccel.data.texts.batches import TextBatches

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
