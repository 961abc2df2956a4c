"""A data set that `tfaccel.fit` goes through as `Model.fit` does, so that both see the same batches in every epoch."""

from __future__ import annotations

from typing import Any

from tfaccel.data.sources import IteratorFeed, IteratorSource, whole_executions


class DatasetSource(IteratorSource):
    """A data set of which iterators are made when `Model.fit` makes them, and as many.

    The order of a shuffled data set depends on how many iterators were made of it before. Keras makes one when an epoch
    begins, and another one behind its last batch, with which it goes on only where `steps_per_epoch` is given.

    Args:
        adapter: Keras's data adapter, which is told when an epoch begins and ends.
        steps_per_epoch: steps of one epoch; the iterator then goes on across epochs.
        steps_per_execution: as of the compiled model; an epoch has whole executions.
    """

    def __init__(self, adapter: Any, *, steps_per_epoch: int | None = None, steps_per_execution: int = 1) -> None:
        super().__init__(
            adapter.get_tf_dataset(), num_batches=adapter.num_batches, steps_per_execution=steps_per_execution
        )
        self.steps_per_epoch = steps_per_epoch
        self._adapter = adapter
        self._made_ahead: Any = None  # the iterator that was made behind the last batch
        self._steps_seen = 0  # of the present iterator, in whole executions

    def reset(self) -> None:
        """Lets the next feed start anew: to be called before training and before each evaluation."""
        self.close()
        self.num_batches = self._adapter.num_batches
        self._steps_seen = 0
        self._adapter.on_epoch_end()

    def feed(self) -> IteratorFeed:
        """The batches of the next epoch."""
        self._adapter.on_epoch_begin()
        steps = self.steps_per_epoch or self.num_batches
        if self.steps_per_epoch is None or (self._feed is None and self._made_ahead is None):
            self.close()
            self._steps_seen = 0
        if self._feed is None:
            self._feed = IteratorFeed(self._dataset if self._made_ahead is None else self._made_ahead)
            self._made_ahead = None
        self.epoch_limit = whole_executions(steps, self.steps_per_execution) if steps else None
        if self.epoch_limit and self.num_batches:
            left = whole_executions(self.num_batches - self._steps_seen, self.steps_per_execution)
            self.epoch_limit = min(self.epoch_limit, left)
        self._feed.begin(self.epoch_limit)
        return self._feed

    def epoch_end(self, num_steps: int, *, stopped: bool = False) -> None:
        """To be called after the last step of an epoch: how many steps it had, and whether a callback ended it."""
        if stopped:  # Keras then leaves the epoch as it is, and the workers of a `PyDataset` too
            workers = getattr(self._adapter, "enqueuer", None)
            if workers is not None:
                workers.stop()
            return
        seen = self._steps_seen + whole_executions(num_steps, self.steps_per_execution)
        if self.epoch_limit is None or seen - self._steps_seen < self.epoch_limit:  # Keras asks for one execution more
            self.num_batches = seen + self.steps_per_execution if self.num_batches is None else self.num_batches
            self.close()
        elif self.num_batches and seen >= self.num_batches:
            self.close()
            self._made_ahead, seen = iter(self._dataset), 0
        self._steps_seen = seen
        self._adapter.on_epoch_end()

    def close(self) -> None:
        """Lets go of the iterators."""
        super().close()
        self._made_ahead = None
