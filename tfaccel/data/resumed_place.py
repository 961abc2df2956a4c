"""A place in a dataset at which a stopped run continues: found again by an iterator's state, or by reading up to it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tfaccel.data.graph_batches import IteratorBatches
from tfaccel.data.iterator_feed import IteratorFeed
from tfaccel.errors import DataError

logger = logging.getLogger("tfaccel")


def changed_data(difference: str) -> DataError:
    """The error for data that are not those of the run which continues."""
    return DataError(
        f"The data are not those of the stopped run: {difference}. Pass the same data, with the same order and random "
        "numbers; or start over in another directory."
    )


@dataclass(frozen=True, kw_only=True)
class ResumedPlace:
    """A place in a dataset at which training continues.

    Attributes:
        step: steps of the epoch that are done.
        batches: batches of the iterator that were used: more than `step` if it continues across epochs.
        state: of the iterator; None if it was not saved, so that these batches are read again.
        next_checksum: of the batch at this place; None if it is unknown, or there was none.
        saved_by: describes the reader that saved state and checksum, which fit no other one.
    """

    step: int = 0
    batches: int = 0
    state: dict[str, np.ndarray] | None = None
    next_checksum: int | None = None
    saved_by: str = ""

    def feed(self, dataset: Any, batches: IteratorBatches | None = None) -> IteratorFeed:
        """The feed of a dataset from this place on; arguments as for `IteratorFeed`.

        Raises:
            DataError: if the batch at this place is another one than it was.
        """
        feed = self._opened(dataset, batches)
        if self.next_checksum is not None and feed.checksum_of_next() != self.next_checksum:
            raise changed_data(f"the batch after step {self.step} of the epoch differs")
        return feed

    def _opened(self, dataset: Any, batches: IteratorBatches | None) -> IteratorFeed:
        if self.state is not None:
            try:
                feed = IteratorFeed(dataset, batches, state=self.state)
                feed.num_used = self.batches
                return feed
            except ValueError as error:
                logger.warning("The saved position in the dataset cannot be used: %.300s", error)
        feed = IteratorFeed(dataset, batches)
        feed.read_again(self.batches)
        return feed

    @classmethod
    def of(cls, restored: tuple[dict[str, np.ndarray], dict[str, Any]] | None) -> Self:
        """The place that a checkpoint of `train` says; the begin without one.

        Args:
            restored: arrays and position of the checkpoint.
        """
        if restored is None:
            return cls()
        arrays, position = restored
        step, place = position["step_in_epoch"], position.get("data", {})
        state = {name: arrays[f"data/{name}"] for name in ("iterator", "next") if f"data/{name}" in arrays}
        return cls(
            step=step,
            batches=step,
            state=state or None,
            next_checksum=place.get("next"),
            saved_by=place.get("reading", ""),
        )
