"""Global batches inside the graph: how the next one is fetched, and how a replica takes its rows.

These objects hold no data. They are equal if they do the same, so that one traced graph serves every source of its
kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import keras
import tensorflow as tf

from tfaccel.errors import DataError

_UNEVEN_ROWS = "The components of a batch have different numbers of rows"


@dataclass(frozen=True)
class ArrayBatches:
    """Batches gathered from arrays by row number.

    The arguments of a graph call are `(arrays, order, first)`: a nest of tensors, row numbers of shape
    (num_batches, rows), and the index of the first batch.

    Attributes:
        has_partial_batch: the dataset ends with a smaller batch. Keras then sees an unknown number of rows in every
            batch, as from its own pipeline; its loss trackers depend on that.
    """

    has_partial_batch: bool

    def start(self, arguments: Any) -> Any:
        """The loop state before the first step, which is empty."""
        del arguments
        return ()

    def has_next(self, state: Any) -> tf.Tensor:
        """Whether there is another batch; the caller never requests more than there are."""
        del state
        return tf.constant(True)

    def with_checked_rows(self, batch: Any, num_replicas: int) -> Any:
        """The batch unchanged: all arrays have the same number of rows."""
        del num_replicas
        return batch

    def fetch(self, arguments: Any, state: Any, step: tf.Tensor) -> tuple[Any, Any]:
        """The global batch of one step, and the next loop state."""
        arrays, order, first = arguments
        return (arrays, order[first + tf.cast(step, tf.int64)]), state

    def num_rows(self, batch: Any) -> int | tf.Tensor:
        """Rows of the global batch: an int where it is known while tracing."""
        numbers = batch[1]
        return numbers.shape[0] if numbers.shape[0] is not None else tf.shape(numbers)[0]

    def rows(self, batch: Any, start: Any = None, stop: Any = None) -> Any:
        """Rows `start` to `stop` of the global batch; all rows by default."""
        arrays, numbers = batch

        def gather(array: tf.Tensor | None) -> tf.Tensor | None:
            if array is None:
                return None
            taken = tf.gather(array, wanted)
            if self.has_partial_batch:
                taken = tf.compat.v1.placeholder_with_default(taken, [None, *taken.shape[1:]])
            return taken

        with tf.device("/CPU:0"):
            wanted = numbers if start is None else numbers[start:stop]
            return keras.tree.map_structure(gather, arrays)


@dataclass(frozen=True)
class IteratorBatches:
    """Batches from a `tf.data` iterator.

    The arguments of a graph call are `(iterator, next)`: `next` is the optional batch that was prefetched. The loop
    state is that optional, and the call returns it.

    Attributes:
        num_global_rows: rows of every global batch if the iterator yields only this worker's rows; else None.
        first_row: index in the global batch of the first row that the iterator yields.
        augment: turns the rows that the iterator yields into rows of a training batch, where they are used: on a
            replica's device; None if they are such rows.
        mixes_rows: `augment` needs all rows of the global batch.
    """

    num_global_rows: int | None = None
    first_row: int = 0
    augment: Callable[[Any], Any] | None = None
    mixes_rows: bool = False

    def start(self, arguments: Any) -> Any:
        """The loop state before the first step."""
        return (arguments[1],)

    def has_next(self, state: Any) -> tf.Tensor:
        """Whether the iterator had another batch."""
        return state[0].has_value()

    def fetch(self, arguments: Any, state: Any, step: tf.Tensor) -> tuple[Any, Any]:
        """The global batch of one step, and the next loop state."""
        del step
        batch = without_optionals(state[0].get_value())
        return batch, (arguments[0].get_next_as_optional(),)

    def num_rows(self, batch: Any) -> int | tf.Tensor:
        """Rows of the global batch: an int where it is known while tracing."""
        if self.num_global_rows is not None:
            return self.num_global_rows
        return _num_rows(next(a for a in keras.tree.flatten(batch) if a is not None and a.shape.rank != 0))

    def with_checked_rows(self, batch: Any, num_replicas: int) -> Any:
        """The batch, after checking that its components have equally many rows, so that replicas can split it."""
        leaves = [a for a in keras.tree.flatten(batch) if a is not None and a.shape.rank != 0]
        counts = [_num_rows(leaf) for leaf in leaves]
        if all(isinstance(count, int) for count in counts):
            if len(set(counts)) > 1:
                raise DataError(_uneven(counts, num_replicas))
            return batch
        checks = [tf.debugging.assert_equal(count, counts[0], _UNEVEN_ROWS) for count in counts[1:]]
        with tf.control_dependencies([check for check in checks if check is not None]):
            return keras.tree.map_structure(lambda leaf: None if leaf is None else tf.identity(leaf), batch)

    def rows(self, batch: Any, start: Any = None, stop: Any = None) -> Any:
        """Rows `start` to `stop` of the global batch, which the iterator must yield; by default all that it yields."""
        if start is None:
            return batch if self.augment is None else self.augment(batch)
        if self.augment is not None and self.mixes_rows:
            return keras.tree.map_structure(lambda a: _slice_rows(a, start, stop), self.augment(batch))
        first, last = start - self.first_row, stop - self.first_row
        with tf.device("/CPU:0"):
            own = keras.tree.map_structure(lambda a: _slice_rows(a, first, last), batch)
        return own if self.augment is None else self.augment(own)


def augmented_by_replicas(batches: GraphBatches) -> tuple[GraphBatches, Callable[[Any], Any]]:
    """Batches before augmentation, and the function that a replica first applies to its rows.

    For steps whose batches are split on the host. If augmentation needs more than a replica's rows, it happens there.
    """
    if isinstance(batches, IteratorBatches) and batches.augment is not None and not batches.mixes_rows:
        return replace(batches, augment=None), batches.augment
    return batches, lambda data: data


def without_optionals(batch: Any) -> Any:
    """A batch (or its specs) with None in place of the empty optionals of a generator's adapter."""
    empty = (tf.experimental.Optional, tf.OptionalSpec)
    return keras.tree.map_structure(lambda a: None if isinstance(a, empty) else a, batch)


def _num_rows(leaf: Any) -> Any:
    """Rows of one component: an int where it is known while tracing."""
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int32)
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int32)
    return leaf.shape[0] if leaf.shape[0] is not None else tf.shape(leaf)[0]


def _uneven(counts: list[int], num_replicas: int) -> str:
    return (
        f"{_UNEVEN_ROWS}: {', '.join(map(str, counts))}. Every component is split along its first axis over the "
        f"{num_replicas} replicas, so all must have as many rows as the batch has examples. Train on one replica "
        "(build the model outside of the strategy), or pass inputs whose length varies per example as ragged tensors."
    )


def raise_uneven_rows(error: tf.errors.InvalidArgumentError, num_replicas: int) -> None:
    """Raises DataError if the error is from `IteratorBatches.with_checked_rows` in the graph; else does nothing."""
    text = str(error)
    if _UNEVEN_ROWS in text:
        counts = [int(count) for count in re.findall(r"\[(\d+)\]", text)]  # TensorFlow writes both
        raise DataError(_uneven(counts[:2], num_replicas)) from None


def _slice_rows(value: Any, start: Any, stop: Any) -> Any:
    if value is None or (isinstance(value, tf.Tensor) and value.shape.rank == 0):
        return value
    if isinstance(value, tf.SparseTensor):
        shape = tf.shape(value, out_type=tf.int64)
        begin = tf.concat([[tf.cast(start, tf.int64)], tf.zeros_like(shape[1:])], axis=0)
        size = tf.concat([[tf.cast(stop - start, tf.int64)], shape[1:]], axis=0)
        return tf.sparse.slice(value, begin, size)
    return value[start:stop]


class GraphBatches(Protocol):
    """Global batches inside a graph; see `tfaccel.data.graph_batches`. A batch is what `fetch` returns."""

    def start(self, arguments: Any) -> Any:
        """The loop state before the first step."""

    def has_next(self, state: Any) -> tf.Tensor:
        """Whether there is another batch."""

    def fetch(self, arguments: Any, state: Any, step: tf.Tensor) -> tuple[Any, Any]:
        """The global batch of one step, and the next loop state."""

    def num_rows(self, batch: Any) -> int | tf.Tensor:
        """Rows of the global batch: an int where it is known while tracing."""

    def rows(self, batch: Any, start: Any = None, stop: Any = None) -> Any:
        """Rows `start` to `stop` of the global batch; all rows by default."""

    def with_checked_rows(self, batch: Any, num_replicas: int) -> Any:
        """The batch, after checking that its components have equally many rows."""


class CallFeed(Protocol):
    """What one graph call needs of a feed."""

    @property
    def batches(self) -> GraphBatches:
        """How batches are fetched and split."""

    @property
    def spec(self) -> Any:
        """The specs of any of its batches."""

    def signature(self, *, any_rows: bool = False) -> Any:
        """Specs of the arguments, for batches of any size with `any_rows`; None if an iterator's type is enough."""

    def arguments(self, num_steps: int) -> tuple[Any, int]:
        """Arguments of the next graph call, and the maximum number of its steps."""

    def finished(self, num_steps: int, state: Any) -> None:
        """Takes note of the steps that a graph call ran, and of the loop state that it ended with."""


class Feed(CallFeed, Protocol):
    """The batches of one epoch."""

    @property
    def exhausted(self) -> bool:
        """Whether every batch has been used."""

    def drop(self) -> None:
        """Passes over the next batch."""

    def peek(self) -> Any:
        """The next batch, as a nest of tensors, without using it."""

    def fingerprint(self) -> int | None:
        """A checksum of the first batch, once, if workers could read different data; else None."""
