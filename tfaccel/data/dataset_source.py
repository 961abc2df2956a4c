"""A dataset that `tfaccel.fit` iterates over as `Model.fit` does, so that both see the same batches in every epoch."""

from __future__ import annotations

from typing import Any

from tfaccel.data.iterator_feed import IteratorFeed
from tfaccel.data.resumed_place import ResumedPlace
from tfaccel.data.sources import IteratorSource, Place, whole_executions


class DatasetSource(IteratorSource):
    """A dataset whose iterators are created when `Model.fit` would create them, and equally many.

    The order of a shuffled dataset depends on how many iterators were created from it before. Keras creates one when
    an epoch begins and another one after its last batch, which it uses only if `steps_per_epoch` is given.

    Args:
        adapter: Keras's data adapter, which is notified when an epoch begins and ends.
        steps_per_epoch: steps of one epoch; the iterator then continues across epochs.
        steps_per_execution: that of the compiled model; an epoch consists of whole executions.
    """

    def __init__(self, adapter: Any, *, steps_per_epoch: int | None = None, steps_per_execution: int = 1) -> None:
        super().__init__(
            adapter.get_tf_dataset(), num_batches=adapter.num_batches, steps_per_execution=steps_per_execution
        )
        self.steps_per_epoch = steps_per_epoch
        self._adapter = adapter
        self._made_ahead: Any = None  # the iterator created after the last batch
        self._steps_seen = 0  # of the current iterator, in whole executions
        self._num_made = 0  # iterators of the dataset, since training began
        self.first_iterator: Any = None  # after `go_to`: the first one of the run, if the next feed is not its first

    def reset(self) -> None:
        """Makes the next feed start over; call it before training and before each evaluation."""
        self.close()
        self.num_batches = self._adapter.num_batches
        self._steps_seen = 0
        self._adapter.on_epoch_end()

    def feed(self) -> IteratorFeed:
        """The batches of the next epoch."""
        resumed, self._resumed = self._resumed, None
        with self.around_feed():
            self._adapter.on_epoch_begin()
            feed = self._opened(resumed)
        steps = self.steps_per_epoch or self.num_batches
        self.epoch_limit = whole_executions(steps, self.steps_per_execution) if steps else None
        if self.epoch_limit and self.num_batches:
            left = whole_executions(self.num_batches - self._steps_seen, self.steps_per_execution)
            self.epoch_limit = min(self.epoch_limit, left)
        done = 0 if resumed is None else resumed.step
        feed.begin(None if self.epoch_limit is None else self.epoch_limit - done)
        return feed

    def _opened(self, resumed: ResumedPlace | None) -> IteratorFeed:
        """The feed of the last iterator if it continues, or of a new one."""
        if resumed is not None:
            self._feed = resumed.feed(self._dataset)
            self._num_made += 1
            return self._feed
        if self.steps_per_epoch is None or (self._feed is None and self._made_ahead is None):
            self.close()
            self._steps_seen = 0
        if self._feed is None:
            self._num_made += self._made_ahead is None
            self._feed = IteratorFeed(self._dataset if self._made_ahead is None else self._made_ahead)
            self._made_ahead = None
        return self._feed

    def place(self, step: int) -> Place:
        """Where the next batch is, after `step` steps of the epoch, for `go_to`."""
        is_open = self._feed is not None or (self._made_ahead is not None and self.steps_per_epoch is not None)
        return {
            "iterators": self._num_made - is_open,
            "seen": self._steps_seen,
            "batches": 0 if self._feed is None else self._feed.num_used,
            "num_batches": self.num_batches,
        }

    def go_to(self, place: Place, resumed: ResumedPlace) -> None:
        """Makes the next feed continue at a place, with as many iterators created before it as there were."""
        made = [iter(self._dataset) for _ in range(place["iterators"])]
        self.first_iterator = made[0] if made else None
        self._num_made = place["iterators"]
        self._steps_seen, self.num_batches = place["seen"], place["num_batches"]
        super().go_to(place, resumed)

    def epoch_end(self, num_steps: int, *, stopped: bool = False) -> None:
        """Call it after the last step of an epoch, with its number of steps and whether a callback ended it."""
        if stopped:  # Keras then leaves the epoch unfinished, and the workers of a `PyDataset` running
            workers = getattr(self._adapter, "enqueuer", None)
            if workers is not None:
                workers.stop()
            return
        seen = self._steps_seen + whole_executions(num_steps, self.steps_per_execution)
        if self.epoch_limit is None or seen - self._steps_seen < self.epoch_limit:  # Keras requests one more execution
            self.num_batches = seen + self.steps_per_execution if self.num_batches is None else self.num_batches
            self.close()
        elif self.num_batches and seen >= self.num_batches:
            self.close()
            self._made_ahead, seen = iter(self._dataset), 0
            self._num_made += 1
        self._steps_seen = seen
        self._adapter.on_epoch_end()

    def close(self) -> None:
        """Releases the iterators."""
        super().close()
        self._made_ahead = None
