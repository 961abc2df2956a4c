"""Batches from one `tf.data` iterator: fetched ahead, saved with their place, and read again up to a place."""

from __future__ import annotations

import logging
import random
import time
import zlib
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import tensorflow as tf

from tfaccel.data.graph_batches import IteratorBatches, without_optionals
from tfaccel.errors import DataError

logger = logging.getLogger("tfaccel")
MAX_STATE_BYTES = 1 << 25  # of an iterator, in a checkpoint
_FAILS = 2  # the policy for pipelines with a state that cannot be saved
_SECONDS_BETWEEN_LINES = 30.0
_UNREADABLE = (tf.errors.OpError, ValueError, TypeError)

_NUMPY = "MT19937"  # the only kind that NumPy's global generator has, unless a script replaces it


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


class IteratorFeed:
    """Batches from one iterator, with the next one always prefetched.

    Args:
        dataset: yields global batches, or this worker's rows of them; or an unused iterator over it.
        batches: how batches are split; None for global batches.
        state: where to continue: what `state` returned for an iterator over the same dataset.

    Raises:
        ValueError: if the state does not fit the dataset.
    """

    def __init__(
        self, dataset: Any, batches: IteratorBatches | None = None, *, state: dict[str, np.ndarray] | None = None
    ) -> None:
        self.batches = batches or IteratorBatches()
        self._iterator: Any = iter(dataset)
        self.spec = self._iterator.element_spec  # of any batch
        self._next: Any = self._iterator.get_next_as_optional() if state is None else self._restored(state)
        self.num_used = 0  # batches of the iterator that were used
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
        if self._left is not None:
            self._left -= num_steps

    def drop(self) -> None:
        """Passes over the next batch."""
        self.finished(1, (self._iterator.get_next_as_optional(),))

    # --- Places -------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, np.ndarray] | None:
        """The iterator's position and its buffers, as bytes; None where tf.data cannot save them, or they are large."""
        try:
            [handle] = tf.nest.flatten(self._iterator, expand_composites=True)
            [following] = tf.nest.flatten(self._next, expand_composites=True)
            saved = tf.raw_ops.SerializeIterator(resource_handle=handle, external_state_policy=_FAILS)
            contents = {"iterator": tf.io.serialize_tensor(saved), "next": tf.io.serialize_tensor(following)}
        except _UNREADABLE:
            return None
        arrays = {name: np.frombuffer(content.numpy(), np.uint8) for name, content in contents.items()}
        return arrays if sum(len(array) for array in arrays.values()) <= MAX_STATE_BYTES else None

    def _restored(self, state: dict[str, np.ndarray]) -> Any:
        """Puts the iterator where it was, and returns the batch that was prefetched."""
        try:
            saved, following = (tf.io.parse_tensor(state[name].tobytes(), tf.variant) for name in ("iterator", "next"))
            [handle] = tf.nest.flatten(self._iterator, expand_composites=True)
            tf.raw_ops.DeserializeIterator(resource_handle=handle, serialized=saved)
        except (*_UNREADABLE, KeyError) as error:
            raise ValueError(f"The state does not fit this iterator: {error}") from error
        return tf.nest.pack_sequence_as(tf.OptionalSpec(self.spec), [following], expand_composites=True)

    def read_again(self, num_batches: int) -> int:
        """Reads batches without using them; returns how many there were, at most `num_batches`. Logs the time."""
        started = told = time.perf_counter()
        for number in range(num_batches):
            if self.ended:
                self.num_used += number
                return number
            self._next = self._iterator.get_next_as_optional()
            now = time.perf_counter()
            if now - told > _SECONDS_BETWEEN_LINES:
                left = (now - started) / (number + 1) * (num_batches - number - 1)
                logger.info("Read %d of %d batches again; about %.0f seconds left.", number + 1, num_batches, left)
                told = now
        self.num_used += num_batches
        if num_batches:
            seconds = time.perf_counter() - started
            logger.info(
                "Read %d batches of the epoch again, in %.1f seconds: the position of this dataset cannot be saved.",
                num_batches,
                seconds,
            )
        return num_batches


def random_states() -> dict[str, np.ndarray]:
    """The states of `random` and `numpy.random`, as arrays.

    Example:
        >>> before = random_states()
        >>> first = random.random(), np.random.rand()
        >>> set_random_states(before)
        >>> (random.random(), np.random.rand()) == first
        True
    """
    _, words, gauss = random.getstate()
    found: dict[str, np.ndarray] = {
        "python": np.array(words, np.uint32),
        "python_gauss": np.array([gauss is not None, gauss or 0.0], np.float64),
    }
    state: Any = np.random.get_state(legacy=True)
    kind, keys, position, has_gauss, cached = state
    if kind == _NUMPY:
        found["numpy"] = np.array(keys, np.uint32)
        found["numpy_gauss"] = np.array([position, has_gauss, cached], np.float64)
    return found


def set_random_states(states: dict[str, np.ndarray]) -> None:
    """Sets what `random_states` returned."""
    has_next, following = states["python_gauss"]
    random.setstate((3, tuple(int(word) for word in states["python"]), float(following) if has_next else None))
    before: Any = np.random.get_state(legacy=True)
    if "numpy" in states and before[0] == _NUMPY:
        position, has_gauss, cached = states["numpy_gauss"]
        np.random.set_state((_NUMPY, states["numpy"], int(position), int(has_gauss), float(cached)))
