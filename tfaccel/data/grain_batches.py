"""The batches of a Grain pipeline as a `tf.data.Dataset` whose place in the pipeline can be saved.

Batches are read ahead of training, so the pipeline's own state is noted before each of them. A checkpoint holds the
state before the batch that is due, and a resumed run begins there: no earlier batch is read again.
"""

from __future__ import annotations

import itertools
import json
import sys
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.private_pipelines import pipeline_of, tensors_of_batch

if TYPE_CHECKING:
    import tensorflow as tf

_KINDS = ("MapDataset", "IterDataset", "DataLoader")
_STATE = "grain"  # its name among the arrays of a place
_END = object()

# The dataset that `grain_dataset` returned -> its reader.
_readers: weakref.WeakKeyDictionary[Any, GrainReader] = weakref.WeakKeyDictionary()


def is_grain(value: Any) -> bool:
    """Whether a value is a `grain.MapDataset`, a `grain.IterDataset` or a `grain.DataLoader`; does not import Grain.

    Example:
        >>> is_grain([1, 2])
        False
    """
    grain = sys.modules.get("grain")
    kinds = (getattr(grain, name, None) for name in _KINDS)
    return isinstance(value, tuple(kind for kind in kinds if isinstance(kind, type)))


def saved_state(iterator: Any) -> bytes | None:
    """The state of a pipeline's iterator, as Grain's own checkpoints hold it; None if it has none that can be saved.

    Args:
        iterator: has `get_state`, which returns bytes or what JSON can hold.
    """
    try:
        state = iterator.get_state()
        return state if isinstance(state, bytes) else json.dumps(state).encode()
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None


def grain_dataset(pipeline: Any, spec: Any) -> tf.data.Dataset:
    """The batches of a pipeline; an `IteratorFeed` of them saves its place.

    Args:
        pipeline: for which `is_grain` is true.
        spec: of any batch, a nest of `tf.TypeSpec`.
    """
    import tensorflow as tf

    reader = GrainReader(pipeline)
    dataset = tf.data.Dataset.from_generator(reader.batches, output_signature=spec)
    _readers[dataset] = reader
    return dataset


def reader_of(dataset: Any) -> GrainReader | None:
    """The reader behind a dataset that was made from one of `grain_dataset`, or behind an iterator; None for others."""
    return next((_readers[one] for one in pipeline_of(dataset) if one in _readers), None)


class GrainReader:
    """Reads a pipeline once for each iterator over a dataset, and notes the states of the newest pass."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._prepared: tuple[Any, int] | None = None
        self.newest = GrainPass(0)

    def go_to(self, state: dict[str, np.ndarray], number: int) -> None:
        """Makes the next pass begin at a state, which is the one before batch `number`.

        Raises:
            ValueError: if the pipeline does not take the state.
        """
        iterator = iter(self._pipeline)
        try:
            content = state[_STATE].tobytes()
            iterator.set_state(content if isinstance(iterator.get_state(), bytes) else json.loads(content))
        except Exception as error:  # of the pipeline's own code
            raise ValueError(f"Grain: {error}") from error
        self._prepared = iterator, number

    def batches(self) -> Iterator[Any]:
        """A pass over the pipeline."""
        prepared, self._prepared = self._prepared, None
        iterator, number = prepared or (iter(self._pipeline), 0)
        self.newest = GrainPass(number)
        return map(tensors_of_batch, self.newest.read(iterator))


class GrainPass:
    """The states of one pass over a pipeline, by the number of the batch that comes next."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._states: dict[int, bytes | None] = {}

    def read(self, iterator: Any) -> Iterator[Any]:
        """The batches that an iterator yields."""
        state: bytes | None = b""
        for number in itertools.count(self._first):
            state = None if state is None else saved_state(iterator)
            self._states[number] = state
            batch = next(iterator, _END)
            if batch is _END:
                return
            yield batch

    def state(self, number: int) -> dict[str, np.ndarray] | None:
        """What `GrainReader.go_to` takes, before batch `number`; None if it is unknown."""
        found = self._states.get(number)
        return None if found is None else {_STATE: np.frombuffer(found, np.uint8)}

    def forget_before(self, number: int) -> None:
        """Forgets the states before batches that were used."""
        for one in [one for one in list(self._states) if one < number]:
            self._states.pop(one, None)
