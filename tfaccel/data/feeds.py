"""Batches for a loop inside the graph: how the next one is fetched there, and how a replica takes its rows.

`ArrayBatches` and `IteratorBatches` do this. They hold no data, and are equal if they do the same, so that one traced
graph serves every source of its kind. An `IteratorFeed` fetches from one `tf.data` iterator, ahead of the steps; it is
saved with its place, or read again up to a place.
"""

from __future__ import annotations

import logging
import re
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.grain_batches import reader_of
from tfaccel.data.private_pipelines import buffered_bytes
from tfaccel.errors import DataError

logger = logging.getLogger("tfaccel")
MAX_STATE_BYTES = 1 << 25  # of an iterator, in a checkpoint
_FAILS = 2  # the policy for pipelines with a state that cannot be saved
_SECONDS_BETWEEN_LINES = 30.0
_UNREADABLE = (tf.errors.OpError, ValueError, TypeError)

HOST = "/CPU:0"

_UNEVEN_ROWS = "The components of a batch have different numbers of rows"


@dataclass(frozen=True)
class ArrayBatches:
    """Batches gathered from arrays by row number.

    The arguments of a graph call are `(arrays, order, first)`: a nest of tensors, row numbers of shape
    (num_batches, rows), and the index of the first batch.

    Attributes:
        has_partial_batch: the dataset ends with a smaller batch. Keras then sees an unknown number of rows in every
            batch, as from its own pipeline; its loss trackers depend on that.
        device: where the arrays are. On a GPU, a step copies nothing from the host: TensorFlow copies a batch only
            after all steps that were launched before, and the GPU stands still until the next step is launched.
    """

    has_partial_batch: bool
    device: str = HOST

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
        with tf.device(HOST):  # where a GPU's kernel, too, reads what it takes
            place = first + tf.cast(step, tf.int64)
            taken = tf.stack([place]), tf.stack([place + 1]), tf.constant([1], tf.int64)  # begin, end and stride
        with tf.device(self.device):
            return (arrays, tf.strided_slice(order, *taken, shrink_axis_mask=1)), state

    def num_rows(self, batch: Any) -> int | tf.Tensor:
        """Rows of the global batch: an int where it is known while tracing."""
        numbers = batch[1]
        return numbers.shape[0] if numbers.shape[0] is not None else tf.shape(numbers)[0]

    def rows(self, batch: Any, start: Any = None, stop: Any = None) -> Any:
        """Rows `start` to `stop` of the global batch; all rows by default."""
        arrays, numbers = batch

        def gather(array: tf.Tensor) -> tf.Tensor:
            taken = tf.gather(array, wanted)
            if self.has_partial_batch:
                taken = tf.compat.v1.placeholder_with_default(taken, [None, *taken.shape[1:]])
            return taken

        with tf.device(self.device):
            wanted = numbers if start is None else numbers[start:stop]
            return keras.tree.map_structure(gather, arrays, none_is_leaf=False)


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
        """The batch, after checking that replicas can split it: all components have equally many rows.

        Or those of several streams have numbers of rows that the replicas divide: each is then split in equal shares.
        """
        leaves = [a for a in keras.tree.flatten(batch) if a is not None and a.shape.rank != 0]
        counts = [_num_rows(leaf) for leaf in leaves]
        if all(isinstance(count, int) for count in counts):
            if len(set(counts)) > 1 and any(count % num_replicas for count in counts):
                raise DataError(_uneven(counts, num_replicas))
            return batch
        are_shared = tf.reduce_all(tf.equal(tf.stack(counts) % num_replicas, 0))
        checks = [tf.debugging.Assert(are_shared | (n == counts[0]), [_UNEVEN_ROWS, n, counts[0]]) for n in counts]
        with tf.control_dependencies([check for check in checks if check is not None]):
            return keras.tree.map_structure(tf.identity, batch, none_is_leaf=False)

    def rows(self, batch: Any, start: Any = None, stop: Any = None) -> Any:
        """Rows `start` to `stop` of the global batch, which the iterator must yield; by default all that it yields."""
        if start is None:
            return batch if self.augment is None else self.augment(batch)
        if self.augment is not None and self.mixes_rows:
            return keras.tree.map_structure(lambda a: slice_rows(a, start, stop), self.augment(batch))
        first, last = start - self.first_row, stop - self.first_row
        num_rows = None if self.num_global_rows is not None else self.num_rows(batch)
        with tf.device(HOST):
            own = keras.tree.map_structure(lambda a: slice_rows(a, first, last, num_rows), batch)
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
        f"{num_replicas} replicas, so all must have as many rows as the batch has examples. Streams with batch sizes "
        f"of their own need sizes that {num_replicas} divides and drop_remainder=True. Or train on one replica (build "
        "the model outside of the strategy), or pass inputs whose length varies per example as ragged tensors."
    )


def raise_uneven_rows(error: tf.errors.InvalidArgumentError, num_replicas: int) -> None:
    """Raises DataError if the error is from `IteratorBatches.with_checked_rows` in the graph; else does nothing."""
    text = str(error)
    if _UNEVEN_ROWS in text:
        counts = [int(count) for count in re.findall(r"\[(\d+)\]", text)]  # TensorFlow writes both
        raise DataError(_uneven(counts[:2], num_replicas)) from None


def slice_rows(value: Any, start: Any, stop: Any, num_rows: Any = None) -> Any:
    """Rows of one component; of a stream with another number of rows than `num_rows`, the same fraction of them."""
    if value is None or (isinstance(value, tf.Tensor) and value.shape.rank == 0):
        return value
    rows = None if num_rows is None else _num_rows(value)
    if rows is not None and not (isinstance(rows, int) and isinstance(num_rows, int) and rows == num_rows):
        rows, num_rows, start, stop = (tf.cast(number, tf.int64) for number in (rows, num_rows, start, stop))
        start, stop = (tf.cast(at * rows // num_rows, tf.int32) for at in (start, stop))
    if isinstance(value, tf.SparseTensor):
        shape = tf.shape(value, out_type=tf.int64)
        begin = tf.concat([[tf.cast(start, tf.int64)], tf.zeros_like(shape[1:])], axis=0)
        size = tf.concat([[tf.cast(stop - start, tf.int64)], shape[1:]], axis=0)
        return tf.sparse.slice(value, begin, size)
    return value[start:stop]


class GraphBatches(Protocol):
    """Global batches inside a graph: what `ArrayBatches` and `IteratorBatches` have in common; see their methods.

    A batch is what `fetch` returns.
    """

    def start(self, arguments: Any) -> Any: ...
    def has_next(self, state: Any) -> tf.Tensor: ...
    def fetch(self, arguments: Any, state: Any, step: tf.Tensor) -> tuple[Any, Any]: ...
    def num_rows(self, batch: Any) -> int | tf.Tensor: ...
    def rows(self, batch: Any, start: Any = None, stop: Any = None) -> Any: ...
    def with_checked_rows(self, batch: Any, num_replicas: int) -> Any: ...


class CallFeed(Protocol):
    """What one graph call needs of a feed; see the methods of `IteratorFeed`."""

    @property
    def batches(self) -> GraphBatches:
        """How batches are fetched and split."""

    @property
    def spec(self) -> Any:
        """The specs of any of its batches."""

    def signature(self, *, any_rows: bool = False) -> Any:
        """Specs of the arguments, for batches of any size with `any_rows`; None if an iterator's type is enough."""

    def arguments(self, num_steps: int) -> tuple[Any, int]: ...
    def finished(self, num_steps: int, state: Any) -> None: ...


class Feed(CallFeed, Protocol):
    """The batches of one epoch."""

    @property
    def exhausted(self) -> bool:
        """Whether every batch has been used."""

    def drop(self) -> None: ...
    def peek(self) -> Any: ...
    def fingerprint(self) -> int | None:
        """A checksum of the first batch, once, if workers could read different data; else None."""


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
                return IteratorFeed(dataset, batches, state=self.state, num_used=self.batches)
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
        state = {name[5:]: array for name, array in arrays.items() if name.startswith("data/")}
        return cls(
            step=step,
            batches=step,
            state=state or None,
            next_checksum=place.get("next"),
            saved_by=place.get("reading", ""),
        )


class IteratorFeed:
    """Batches from one iterator, with the next one always prefetched.

    Args:
        dataset: yields global batches, or this worker's rows of them; or an unused iterator over it.
        batches: how batches are split; None for global batches.
        state: where to continue: what `state` returned for an iterator over the same dataset.
        num_used: batches that were used before this state.

    Raises:
        ValueError: if the state does not fit the dataset.
    """

    def __init__(
        self,
        dataset: Any,
        batches: IteratorBatches | None = None,
        *,
        state: dict[str, np.ndarray] | None = None,
        num_used: int = 0,
    ) -> None:
        self.batches = batches or IteratorBatches()
        reader = reader_of(dataset)
        if reader is not None and state is not None:
            reader.go_to(state, num_used)
            state = None
        self._iterator: Any = iter(dataset)
        self.spec = self._iterator.element_spec  # of any batch
        self._next: Any = self._iterator.get_next_as_optional() if state is None else self._restored(state)
        self._pass = None if reader is None else reader.newest  # which the line above began
        self.num_used = num_used  # batches of the iterator that were used
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
        return self.checksum_of_next()

    def checksum_of_next(self) -> int | None:
        """A checksum of the next batch (below 2**31); None if there is none."""
        if self.ended:
            return None
        checksum = 0
        for leaf in tf.nest.flatten(without_optionals(self._next.get_value()), expand_composites=True):
            if leaf is None:
                continue
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
        self.num_used += num_steps
        if self._pass is not None:
            self._pass.forget_before(self.num_used)
        if self._left is not None:
            self._left -= num_steps

    def drop(self) -> None:
        """Passes over the next batch."""
        self.finished(1, (self._iterator.get_next_as_optional(),))

    def state(self) -> dict[str, np.ndarray] | None:
        """The iterator's position and its buffers, as bytes; None where tf.data cannot save them, or they are large.

        Of a Grain pipeline, the state before the next batch.
        """
        if self._pass is not None:
            return _if_small(self._pass.state(self.num_used))
        try:
            [handle] = tf.nest.flatten(self._iterator, expand_composites=True)
            [following] = tf.nest.flatten(self._next, expand_composites=True)
            saved = tf.raw_ops.SerializeIterator(resource_handle=handle, external_state_policy=_FAILS)
            contents = {"iterator": tf.io.serialize_tensor(saved), "next": tf.io.serialize_tensor(following)}
        except _UNREADABLE:
            return None
        arrays = {name: np.frombuffer(content.numpy(), np.uint8) for name, content in contents.items()}
        return _if_small(arrays)

    def _restored(self, state: dict[str, np.ndarray]) -> Any:
        """Puts the iterator where it was, and returns the batch that was prefetched."""
        try:
            saved, following = (tf.io.parse_tensor(state[name].tobytes(), tf.variant) for name in ("iterator", "next"))
            [handle] = tf.nest.flatten(self._iterator, expand_composites=True)
            tf.raw_ops.DeserializeIterator(resource_handle=handle, serialized=saved)
        except (*_UNREADABLE, KeyError) as error:
            raise ValueError(f"The state does not fit this iterator: {error}") from error
        return tf.nest.pack_sequence_as(tf.OptionalSpec(self.spec), [following], expand_composites=True)

    def read_again(self, num_batches: int) -> None:
        """Reads batches, at most as many as there are, without using them. Logs the time."""
        started = told = time.perf_counter()
        for number in range(1, num_batches + 1):
            if self.ended:
                return
            self._next = self._iterator.get_next_as_optional()
            self.num_used += 1
            now = time.perf_counter()
            if now - told > _SECONDS_BETWEEN_LINES:
                left = (now - started) / number * (num_batches - number)
                logger.info("Read %d of %d batches again; about %.0f seconds left.", number, num_batches, left)
                told = now
        if num_batches:
            logger.info(
                "Read %d batches of the epoch again, in %.1f seconds: the position of this dataset cannot be saved.",
                num_batches,
                time.perf_counter() - started,
            )


def _if_small(state: dict[str, np.ndarray] | None) -> dict[str, np.ndarray] | None:
    return state if state is not None and sum(map(len, state.values())) <= MAX_STATE_BYTES else None


def may_save_state(dataset: tf.data.Dataset) -> bool:
    """Whether the state of an iterator over a dataset is, as far as is known, small enough for a checkpoint."""
    return reader_of(dataset) is not None or buffered_bytes(dataset) <= MAX_STATE_BYTES
