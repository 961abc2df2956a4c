"""Sources of global batches for a training loop that runs inside the graph.

A source returns one *feed* per epoch; a feed returns the arguments of the next graph call. Arrays are gathered by row
number inside the graph: neither Python nor tf.data runs between two steps, and a replica reads only its own rows. Any
other input comes through a `tf.data` iterator.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Callable, Collection
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.graph_batches import ArrayBatches, IteratorBatches, without_optionals


class ArraySource:
    """Batches of arrays in memory.

    Args:
        arrays: nest of tensors with a common first dimension (the examples).
        global_batch_size: rows of one batch; the last may be smaller.
        order: returns the row numbers of a pass (from 0), int64, shape (num_rows,); None for no shuffling.
        steps: steps of one epoch if an epoch is not a whole pass; the next epoch then continues the same pass.
        steps_per_execution: that of the compiled model; an epoch consists of whole executions, as in Keras.
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
    ) -> None:
        self.arrays = arrays
        self.global_batch_size = global_batch_size
        self.steps_per_epoch = steps
        self.steps_per_execution = steps_per_execution
        self.epoch_limit = None if steps is None else whole_executions(steps, steps_per_execution)
        self._feed: ArrayFeed | None = None
        self._passes = 0
        leaves = [leaf for leaf in keras.tree.flatten(arrays) if leaf is not None]
        num_rows = int(leaves[0].shape[0])
        self._order = order or (lambda _: np.arange(num_rows, dtype=np.int64))
        self.num_batches: int | None = math.ceil(num_rows / global_batch_size)
        self.batch_spec = keras.tree.map_structure(
            lambda a: None if a is None else tf.TensorSpec([None, *a.shape[1:]], a.dtype), arrays
        )

    def feed(self) -> ArrayFeed:
        """The batches of the next epoch: a new pass, or the rest of the last one if an epoch is not a whole pass."""
        if self._feed is None or self.steps_per_epoch is None or self._feed.exhausted:
            self._feed = ArrayFeed(self, self._order(self._passes))
            self._passes += 1
        return self._feed

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


class ArrayFeed:
    """One pass over an `ArraySource`."""

    def __init__(self, source: ArraySource, order: np.ndarray) -> None:
        self._source = source
        self._step = 0
        size = source.global_batch_size
        self._num_full = len(order) // size
        with tf.device("/CPU:0"):
            self._full = tf.constant(order[: self._num_full * size].reshape(self._num_full, size))
            self._last = tf.constant(order[self._num_full * size :].reshape(1, -1))
        self._num_batches = self._num_full + (1 if self._last.shape[1] else 0)
        self.batches = ArrayBatches(has_partial_batch=self._num_batches > self._num_full)
        self.spec = source.batch_spec  # of any batch
        if not self.batches.has_partial_batch:
            self.spec = keras.tree.map_structure(
                lambda spec: None if spec is None else tf.TensorSpec([size, *spec.shape[1:]], spec.dtype), self.spec
            )

    @property
    def exhausted(self) -> bool:
        """Whether every batch has been used."""
        return self._step >= self._num_batches

    def signature(self, *, any_rows: bool = False) -> Any:
        """Argument specs for arrays of any length, so that one traced graph serves them all.

        Args:
            any_rows: also for batches of any size.
        """
        size = self._source.global_batch_size if self._step < self._num_full and not any_rows else None
        return self._source.batch_spec, tf.TensorSpec([None, size], tf.int64), tf.TensorSpec([], tf.int64)

    def arguments(self, num_steps: int) -> tuple[Any, int]:
        """Arguments of the next graph call, and the maximum number of its steps (batches of equal size only)."""
        if self._step < self._num_full:
            count = min(num_steps, self._num_full - self._step)
            return (self._source.arrays, self._full, tf.constant(self._step, tf.int64)), count
        return (self._source.arrays, self._last, tf.constant(0, tf.int64)), 1

    def peek(self) -> Any:
        """The next batch, as a nest of tensors, without using it."""
        rows = self._full[self._step] if self._step < self._num_full else self._last[0]
        return keras.tree.map_structure(lambda a: None if a is None else tf.gather(a, rows), self._source.arrays)

    def finished(self, num_steps: int, state: Any) -> None:
        """Takes note of the steps that a graph call ran, and of the loop state that it ended with."""
        del state
        self._step += num_steps

    def drop(self) -> None:
        """Passes over the next batch."""
        self._step += 1

    def fingerprint(self) -> int | None:
        """None: the order depends on a seed that all workers share."""


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
        self._feed: IteratorFeed | None = None
        self._repeated = num_batches is not None and num_epochs > 1
        self._dataset = repeated(dataset, num_epochs) if self._repeated else dataset

    def feed(self) -> IteratorFeed:
        """The batches of the next epoch."""
        if self._feed is None or not self._repeated or self._feed.ended:
            self.close()
            self._feed = IteratorFeed(self._dataset)
        self._feed.begin(self.num_batches if self._repeated else None)
        return self._feed

    def epoch_end(self, num_steps: int, *, stopped: bool = False) -> None:
        """Call it after the last step of an epoch, with its number of steps."""
        if self.num_batches is None and self._feed is not None and self._feed.ended:
            self.num_batches = num_steps  # for the progress bar of the next epoch

    def reset(self) -> None:
        """Makes the next feed start over, unless it would anyway."""
        if not (self._repeated and self._feed is not None and self._feed.exhausted):
            self.close()

    def close(self) -> None:
        """Releases the iterator; a thread, not the caller, waits for tf.data's threads to end."""
        if self._feed is not None:
            release = [self._feed.take_iterator()]
            self._feed = None
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


class IteratorFeed:
    """Batches from one iterator, with the next one always prefetched.

    Args:
        dataset: yields global batches, or this worker's rows of them; or an unused iterator over it.
        batches: how batches are split; None for global batches.
    """

    def __init__(self, dataset: Any, batches: IteratorBatches | None = None) -> None:
        self.batches = batches or IteratorBatches()
        self._iterator: Any = iter(dataset)
        self.spec = self._iterator.element_spec  # of any batch
        self._next: Any = self._iterator.get_next_as_optional()
        self._left: int | None = None
        self._fingerprinted = self.batches.num_global_rows is not None  # workers' own rows differ

    def begin(self, num_batches: int | None) -> None:
        """Starts an epoch of `num_batches` (None: until the iterator ends)."""
        self._left = num_batches

    def take_iterator(self) -> Any:
        """Returns the iterator and its prefetched batch, and releases both."""
        iterator, self._iterator, self._next = (self._iterator, self._next), None, None
        return iterator

    @property
    def ended(self) -> bool:
        """Whether the iterator has no more batches."""
        return not bool(self._next.has_value())

    @property
    def exhausted(self) -> bool:
        """Whether every batch of the epoch has been used."""
        return self._left == 0 or self.ended

    def signature(self, *, any_rows: bool = False) -> None:
        """None: the iterator's type is enough."""

    def fingerprint(self) -> int | None:
        """A checksum of the iterator's first batch (below 2**31), once; None afterwards."""
        if self._fingerprinted or self.ended:
            return None
        self._fingerprinted = True
        checksum = 0
        for leaf in tf.nest.flatten(self._next.get_value(), expand_composites=True):
            values = np.asarray(leaf)
            content = b"\0".join(values.ravel().tolist()) if values.dtype == object else values.tobytes()
            checksum = zlib.crc32(content, checksum)
        return checksum & 0x7FFFFFFF

    def peek(self) -> Any:
        """The next batch, or this worker's rows of it, as a nest of tensors, without using it."""
        return self.batches.rows(without_optionals(self._next.get_value()))

    def arguments(self, num_steps: int) -> tuple[Any, int]:
        """Arguments of the next graph call, and the maximum number of its steps."""
        return (self._iterator, self._next), num_steps if self._left is None else min(num_steps, self._left)

    def finished(self, num_steps: int, state: Any) -> None:
        """Takes note of the steps that a graph call ran, and of the loop state that it ended with."""
        self._next = state[0]
        if self._left is not None:
            self._left -= num_steps

    def drop(self) -> None:
        """Passes over the next batch."""
        self.finished(1, (self._iterator.get_next_as_optional(),))
