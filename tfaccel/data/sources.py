"""Sources of global batches for a training loop that runs inside the graph.

A source returns one *feed* per epoch; a feed returns the arguments of the next graph call. Arrays are gathered by row
number inside the graph: neither Python nor tf.data runs between two steps, and a replica reads only its own rows. Any
other input comes through a `tf.data` iterator.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.feeds import HOST, ArrayBatches, IteratorFeed, ResumedPlace, without_optionals
from tfaccel.data.given_data import checksum_of_rows

Place = dict[str, Any]  # where the next batch of a source is, as JSON values


class ArraySource:
    """Batches of arrays in memory.

    Args:
        arrays: nest of tensors with a common first dimension (the examples).
        global_batch_size: rows of one batch; the last may be smaller.
        order: returns the row numbers of a pass (from 0), int64, shape (num_rows,); None for no shuffling.
        steps: steps of one epoch if an epoch is not a whole pass; the next epoch then continues the same pass.
        steps_per_execution: that of the compiled model; an epoch consists of whole executions, as in Keras.
        device: where the arrays are, and where batches are gathered.
    """

    dropped: Collection[int] = ()

    def __init__(
        self,
        arrays: Any,
        *,
        global_batch_size: int,
        order: Callable[[int], np.ndarray] | None = None,
        steps: int | None = None,
        steps_per_execution: int = 1,
        device: str = HOST,
    ) -> None:
        self.arrays, self.device = arrays, device
        self.global_batch_size = global_batch_size
        self.steps_per_epoch = steps
        self.steps_per_execution = steps_per_execution
        self.epoch_limit = None if steps is None else whole_executions(steps, steps_per_execution)
        self._feed: ArrayFeed | None = None
        self._passes = 0
        self._fingerprinted = False
        leaves = [leaf for leaf in keras.tree.flatten(arrays) if leaf is not None]
        num_rows = int(leaves[0].shape[0])
        self._order = order or (lambda _: np.arange(num_rows, dtype=np.int64))
        self._resumes = False
        self.around_feed: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext  # `feed` runs within it
        self.num_batches: int | None = math.ceil(num_rows / global_batch_size)
        self.batch_spec = keras.tree.map_structure(
            lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), arrays, none_is_leaf=False
        )

    def feed(self) -> ArrayFeed:
        """The batches of the next epoch: a new pass, or the rest of the last one if an epoch is not a whole pass."""
        resumes, self._resumes = self._resumes, False
        with self.around_feed():
            if self._feed is None or (not resumes and (self.steps_per_epoch is None or self._feed.exhausted)):
                self._feed = ArrayFeed(self, self._order(self._passes))
                self._passes += 1
        return self._feed

    def place(self, step: int) -> Place:
        """Where the next batch is, after `step` steps of the epoch, for `go_to`."""
        within = self._feed is not None and (step or not self._feed.exhausted)
        return {"passes": self._passes, "batches": self._feed.num_used if self._feed is not None and within else 0}

    def go_to(self, place: Place) -> None:
        """Makes the next feed continue at a place."""
        self._passes, self._feed = place["passes"], None
        if place["batches"]:
            self._feed = ArrayFeed(self, self._order(self._passes - 1), place["batches"])
            self._resumes = True

    def fingerprint(self) -> int | None:
        """A checksum of all arrays (below 2**31), once; None afterwards."""
        if self._fingerprinted:
            return None
        self._fingerprinted = True
        named = enumerate(leaf for leaf in keras.tree.flatten(self.arrays) if leaf is not None)
        return int(checksum_of_rows((str(number), np.asarray(leaf)) for number, leaf in named)[:8], 16) & 0x7FFFFFFF

    def epoch_end(self, num_steps: int, *, stopped: bool = False) -> None:
        """Nothing to do."""

    def reset(self) -> None:
        """Makes the next feed start over."""
        self._feed = None

    def close(self) -> None:
        """Nothing to release."""


def whole_executions(num_steps: int, steps_per_execution: int) -> int:
    """`num_steps`, rounded up to whole executions.

    Example:
        >>> whole_executions(7, 3), whole_executions(7, 1)
        (9, 7)
    """
    return math.ceil(num_steps / steps_per_execution) * steps_per_execution


def arrays_on(device: str, arrays: Any) -> Any:
    """A nest of tensors in the memory of a device; the same ones where they are on the host and are to be there."""
    if device == HOST:
        return arrays
    with tf.device(device):
        return keras.tree.map_structure(tf.identity, arrays, none_is_leaf=False)


def _on_host(number: int) -> tf.Tensor:
    with tf.device(HOST):
        return tf.constant(number, tf.int64)


class ArrayFeed:
    """One pass over an `ArraySource`, or the rest of it after `num_used` batches; or several epochs in memory."""

    def __init__(self, source: ArraySource, order: np.ndarray, num_used: int = 0) -> None:
        self._source = source
        self.num_used = num_used
        size = source.global_batch_size
        self._num_full = len(order) // size
        with tf.device(source.device):
            self._full = tf.constant(order[: self._num_full * size].reshape(self._num_full, size))
            self._last = tf.constant(order[self._num_full * size :].reshape(1, -1))
        self._end = self._num_full + (1 if self._last.shape[1] else 0)
        self.batches = ArrayBatches(has_partial_batch=self._end > self._num_full, device=source.device)
        self.spec = source.batch_spec  # of any batch
        if not self.batches.has_partial_batch:
            self.spec = keras.tree.map_structure(
                lambda spec: tf.TensorSpec([size, *spec.shape[1:]], spec.dtype), self.spec, none_is_leaf=False
            )

    @classmethod
    def of_rows(cls, arrays: Any, order: np.ndarray, global_batch_size: int, device: str = HOST) -> Self:
        """The batches of one or several consecutive epochs whose rows are in memory, so that no iterator or thread
        delays the next step.

        Args:
            arrays: nest of tensors with one row for each example.
            order: the row numbers of the epochs, int64. Only one epoch may end with a smaller batch.
            global_batch_size: rows of each batch.
            device: where the arrays are, and where batches are gathered.
        """
        return cls(ArraySource(arrays, global_batch_size=global_batch_size, device=device), order)

    @classmethod
    def of_dataset(cls, dataset: tf.data.Dataset, global_batch_size: int) -> Self:
        """The epochs in a dataset of a known number of full, dense batches of equal shape. It is read at once."""
        with tf.device(HOST):
            batches = dataset.batch(int(dataset.cardinality())).get_single_element()
            rows = tf.nest.map_structure(lambda a: tf.reshape(a, [-1, *a.shape[2:]]), batches)
        return cls.of_rows(rows, np.arange(tf.nest.flatten(rows)[0].shape[0], dtype=np.int64), global_batch_size)

    def begin(self, num_batches: int) -> None:
        """Starts an epoch of `num_batches`."""
        self._end = self.num_used + num_batches

    @property
    def exhausted(self) -> bool:
        """Whether every batch of the epoch has been used."""
        return self.num_used >= self._end

    def take_iterator(self) -> None:
        """None: there is no iterator to release."""

    def signature(self, *, any_rows: bool = False) -> Any:
        """Argument specs for arrays of any length, so that one traced graph serves them all.

        Args:
            any_rows: also for batches of any size.
        """
        size = self._source.global_batch_size if self.num_used < self._num_full and not any_rows else None
        return self._source.batch_spec, tf.TensorSpec([None, size], tf.int64), tf.TensorSpec([], tf.int64)

    def arguments(self, num_steps: int) -> tuple[Any, int]:
        """Arguments of the next graph call, and the maximum number of its steps (batches of equal size only)."""
        if self.num_used < self._num_full:
            count = min(num_steps, self._num_full - self.num_used, self._end - self.num_used)
            return (self._source.arrays, self._full, _on_host(self.num_used)), count
        return (self._source.arrays, self._last, _on_host(0)), 1

    def peek(self) -> Any:
        """The next batch, as a nest of tensors, without using it."""
        rows = self._full[self.num_used] if self.num_used < self._num_full else self._last[0]
        return keras.tree.map_structure(lambda a: tf.gather(a, rows), self._source.arrays, none_is_leaf=False)

    def finished(self, num_steps: int, state: Any) -> None:
        """Takes note of the steps that a graph call ran, and of the loop state that it ended with."""
        del state
        self.num_used += num_steps

    def drop(self) -> None:
        """Passes over the next batch."""
        self.finished(1, None)

    def fingerprint(self) -> int | None:
        """A checksum of all arrays (below 2**31), once; their order depends on a seed that all workers share."""
        return self._source.fingerprint()


def num_bytes_of_batch(batch_spec: Any, global_batch_size: int) -> int:
    """The size of a batch; 0 if it is unknown, or if batches are not dense numbers of fixed shape.

    Example:
        >>> num_bytes_of_batch((tf.TensorSpec([8, 3], tf.float32), tf.TensorSpec([8], tf.int64)), 8)
        160
        >>> num_bytes_of_batch(tf.TensorSpec([None, 3], tf.float32), 8)
        0
    """
    specs = tf.nest.flatten(batch_spec)
    dense = all(isinstance(spec, tf.TensorSpec) and spec.dtype != tf.string for spec in specs)
    if not dense or not all(spec.shape.is_fully_defined() and spec.shape[:1] == [global_batch_size] for spec in specs):
        return 0
    return sum(spec.shape.num_elements() * spec.dtype.size for spec in specs)


class IteratorSource:
    """Any other input: a `tf.data.Dataset` of global batches.

    Args:
        dataset: yields `x`, `(x, y)` or `(x, y, sample_weight)` batches.
        num_batches: batches of one pass, None if unknown or infinite.
        num_epochs: passes that will be requested. They come from one repeated iterator, because the end of an
            iterator can wait seconds for tf.data's autotune thread.
        steps_per_execution: that of the compiled model.
    """

    steps_per_epoch: int | None = None
    epoch_limit: int | None = None  # maximum steps of the epoch that `feed` began
    dropped: Collection[int] = ()  # steps of that epoch whose batches are not trained on

    def __init__(
        self, dataset: tf.data.Dataset, *, num_batches: int | None, num_epochs: int = 1, steps_per_execution: int = 1
    ) -> None:
        self.num_batches = num_batches
        self.steps_per_execution = steps_per_execution
        self.batch_spec = without_optionals(dataset.element_spec)
        self.open_feed: IteratorFeed | None = None  # of the epoch in progress
        self._resumed: ResumedPlace | None = None
        self.around_feed: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext  # `feed` runs within it
        self._repeated = num_batches is not None and num_epochs > 1
        self.dataset = repeated(dataset, num_epochs) if self._repeated else dataset  # what iterators are made of

    def feed(self) -> IteratorFeed:
        """The batches of the next epoch."""
        resumed, self._resumed = self._resumed, None
        with self.around_feed():
            if resumed is not None:
                self.open_feed = resumed.feed(self.dataset)
            elif self.open_feed is None or not self._repeated or self.open_feed.ended:
                self.close()
                self.open_feed = IteratorFeed(self.dataset)
        left = self.num_batches if self._repeated else None
        self.open_feed.begin(left if left is None or resumed is None else left - resumed.step)
        return self.open_feed

    def place(self, step: int) -> Place:
        """Where the next batch is, after `step` steps of the epoch, for `go_to`. All passes are alike."""
        return {"batches": step}

    def go_to(self, place: Place, resumed: ResumedPlace) -> None:
        """Makes the next feed continue at a place."""
        del place
        self._resumed = resumed if resumed.batches or resumed.step else None

    def epoch_end(self, num_steps: int, *, stopped: bool = False) -> None:
        """Call it after the last step of an epoch, with its number of steps."""
        if self.num_batches is None and self.open_feed is not None and self.open_feed.ended:
            self.num_batches = num_steps  # for the progress bar of the next epoch

    def reset(self) -> None:
        """Makes the next feed start over, unless it would anyway."""
        if not (self._repeated and self.open_feed is not None and self.open_feed.exhausted):
            self.close()

    def close(self) -> None:
        """Releases the iterator; a thread, not the caller, waits for tf.data's threads to end."""
        if self.open_feed is not None:
            release = [self.open_feed.take_iterator()]
            self.open_feed = None
            threading.Thread(target=release.clear, name="tfaccel-iterator-release").start()


def repeated(dataset: tf.data.Dataset, num_epochs: int) -> tf.data.Dataset:
    """The dataset repeated, prefetched by one thread.

    tf.data adds a prefetch to a dataset that does not end in one. After a prefetch and a repeat, that is a second
    thread that every batch passes through: a fifth of the step time of a small model. Only the dataset's class reveals
    the prefetch.
    """
    if not isinstance(dataset, type(dataset.prefetch(1))):
        return dataset.repeat(num_epochs)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.repeat(num_epochs).with_options(options)


class DatasetSource(IteratorSource):
    """A dataset whose iterators are created when `Model.fit` would create them, and equally many.

    The order of a shuffled dataset depends on how many iterators were created from it before. Keras creates one when
    an epoch begins and another one after its last batch, which it uses only if `steps_per_epoch` is given.

    Args:
        adapter: Keras's data adapter, which is notified when an epoch begins and ends.
        steps_per_epoch: steps of one epoch; the iterator then continues across epochs.
        steps_per_execution: that of the compiled model; an epoch consists of whole executions.
        dataset: what to read in place of the adapter's own dataset.
    """

    def __init__(
        self,
        adapter: Any,
        *,
        steps_per_epoch: int | None = None,
        steps_per_execution: int = 1,
        dataset: tf.data.Dataset | None = None,
    ) -> None:
        super().__init__(
            adapter.get_tf_dataset() if dataset is None else dataset,
            num_batches=adapter.num_batches,
            steps_per_execution=steps_per_execution,
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
            self.open_feed = resumed.feed(self.dataset)
            self._num_made += 1
            return self.open_feed
        if self.steps_per_epoch is None or (self.open_feed is None and self._made_ahead is None):
            self.close()
            self._steps_seen = 0
        if self.open_feed is None:
            self._num_made += self._made_ahead is None
            self.open_feed = IteratorFeed(self.dataset if self._made_ahead is None else self._made_ahead)
            self._made_ahead = None
        return self.open_feed

    def place(self, step: int) -> Place:
        """Where the next batch is, after `step` steps of the epoch, for `go_to`."""
        is_open = self.open_feed is not None or (self._made_ahead is not None and self.steps_per_epoch is not None)
        return {
            "iterators": self._num_made - is_open,
            "seen": self._steps_seen,
            "batches": 0 if self.open_feed is None else self.open_feed.num_used,
            "num_batches": self.num_batches,
        }

    def go_to(self, place: Place, resumed: ResumedPlace) -> None:
        """Makes the next feed continue at a place, with as many iterators created before it as there were."""
        made = [iter(self.dataset) for _ in range(place["iterators"])]
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
            self._made_ahead, seen = iter(self.dataset), 0
            self._num_made += 1
        self._steps_seen = seen
        self._adapter.on_epoch_end()

    def close(self) -> None:
        """Releases the iterators."""
        super().close()
        self._made_ahead = None
