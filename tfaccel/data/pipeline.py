"""The builder of input pipelines: shuffled by index, read in parallel, cached where there is room, batched, augmented.

Everything random about an epoch (its order, and the numbers that augment each example) is drawn by numpy from seed and
epoch, and belongs to a place in the epoch. So an epoch is the same in any process, can be entered at any step without
reading what comes before, and can be shared among workers, each of which reads its own rows of every batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.data.cache_choice import CacheOptions
from tfaccel.data.epoch_positions import Shard, epoch_positions
from tfaccel.data.example_cache import ExampleCache, Reader
from tfaccel.data.ordered_map import ordered_map, untuned

AUTOMATIC = CacheOptions()


@dataclass(frozen=True)
class Augmentation:
    """How the examples of a batch are changed at random.

    Args:
        draw: `draw(generator, num_examples)` returns the random numbers of an epoch: a nest of arrays, each with a row
            for every place in the epoch.
        apply: `apply(examples, numbers)` changes a batch by the numbers drawn for its places. It is traced.
    """

    draw: Callable[[np.random.Generator, int], Any]
    apply: Callable[[Any, Any], Any]


class Pipeline:
    """Batches of examples that are read by row number.

    Args:
        read: `read(rows)` takes row numbers (an int64 tensor of shape (num_rows,)) and returns a nest of tensors with
            as many rows. It is traced, and called from several threads.
        num_examples: rows in all.
        prepare: `prepare(examples)` is applied to every batch, behind the cache: what makes examples larger (a cast to
            float32, say) belongs here. It is traced.
        augmentation: how training batches are changed at random, after they were put together and prepared.
        cache: where examples are kept once they were read; None: they are not, because they lie in memory already.
        noun: what examples are called in messages.

    Example:
        >>> pipeline = Pipeline(
        ...     lambda rows: 10 * rows, num_examples=6, cache=None,
        ...     augmentation=Augmentation(lambda generator, count: generator.integers(0, 9, count), tf.add),
        ... )
        >>> epoch = [batch.tolist() for batch in pipeline.train(2, seed=0, epoch=0).as_numpy_iterator()]
        >>> sorted(number // 10 for batch in epoch for number in batch)
        [0, 1, 2, 3, 4, 5]
        >>> resumed = pipeline.train(2, seed=0, epoch=0, start_step=2)
        >>> [batch.tolist() for batch in resumed.as_numpy_iterator()] == epoch[2:]
        True
    """

    def __init__(
        self,
        read: Reader,
        *,
        num_examples: int,
        prepare: Callable[[Any], Any] | None = None,
        augmentation: Augmentation | None = None,
        cache: CacheOptions | None = AUTOMATIC,
        noun: str = "examples",
    ) -> None:
        self._source = read
        self._num_examples = num_examples
        self._prepare = prepare
        self._augmentation = augmentation
        self._cache = cache
        self._noun = noun
        self._traced: dict[tuple[int, bool], Callable[..., Any]] = {}

    def train(
        self,
        global_batch_size: int,
        *,
        seed: int,
        epoch: int,
        start_step: int = 0,
        shard: Shard | None = None,
        augmented: bool = True,
        num_epochs: int = 1,
    ) -> tf.data.Dataset:
        """Full batches of an epoch; the examples left over are other ones in each epoch.

        All batches have one shape, for XLA and so that every replica has an equal share.

        Args:
            global_batch_size: examples of a batch, over all workers.
            seed, epoch: decide what the epoch holds.
            start_step: the batch to begin with; those before it are not read.
            shard: (index, count): of each batch only the rows of worker `index` out of `count`; None for all.
            augmented: False: batches as `augment` takes them, to be augmented later; it matters with an augmentation.
            num_epochs: number of consecutive epochs, starting with `epoch`; `start_step` counts in the first. To
                prepare epochs of a few steps one by one takes as long as to train on them.

        Raises:
            DataError: if there are fewer examples than one batch takes, or no such step or shard.
        """
        positions = epoch_positions(
            self._num_examples,
            global_batch_size,
            start_step=start_step,
            shard=shard,
            noun=self._noun,
            num_epochs=num_epochs,
        )
        numbers = joined([self._numbers(seed, epoch + i) for i in range(num_epochs)])
        with tf.device("/CPU:0"):
            steps = tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(lambda array: array[positions], numbers))
        return ordered_map(steps, self._batch(positions.shape[1], steps.element_spec, augmented))

    def _numbers(self, seed: int, epoch: int) -> tuple[Any, ...]:
        """Whatever is random about an epoch, by place: the example, and what it is augmented with."""
        generator = np.random.default_rng([seed, epoch])
        numbers: tuple[Any, ...] = (generator.permutation(self._num_examples),)
        if self._augmentation is not None:
            numbers += (self._augmentation.draw(generator, self._num_examples),)
        return numbers

    def augment(self, batch: tuple[Any, Any]) -> Any:
        """A training batch as `train` makes it, of one that it made with `augmented=False`. It can be traced.

        Args:
            batch: examples, and the random numbers drawn for them; or some rows of both.
        """
        return batch[0] if self._augmentation is None else self._augmentation.apply(*batch)

    def test(self, global_batch_size: int) -> tf.data.Dataset:
        """All examples in order and as they are; the last batch may have fewer."""
        return ordered_map(tf.data.Dataset.range(self._num_examples).batch(global_batch_size), self._prepared)

    @functools.cached_property
    def _prepared(self) -> Reader:
        """Reads and prepares; the cache is filled when this is first asked for, outside of any graph."""
        read, prepare = self._source, self._prepare
        if self._cache is not None:
            read = ExampleCache(read, num_examples=self._num_examples, options=self._cache, noun=self._noun).read
        return read if prepare is None else lambda rows: prepare(read(rows))

    def _batch(self, num_rows: int, specs: tuple[Any, ...], augmented: bool) -> Callable[..., Any]:
        """The function that makes a training batch, traced once and not in every epoch."""
        prepared, key = self._prepared, (num_rows, augmented)
        if key not in self._traced:

            def batch(rows: tf.Tensor, numbers: Any = None) -> Any:
                examples = prepared(rows), numbers
                return self.augment(examples) if augmented else examples

            self._traced[key] = tf.function(batch, autograph=False).get_concrete_function(*specs)
        return self._traced[key]


def joined(parts: Sequence[Any]) -> Any:
    """Concatenates nests of arrays.

    Example:
        >>> joined([(np.arange(2),), (np.arange(3),)])[0].tolist()
        [0, 1, 0, 1, 2]
    """
    return parts[0] if len(parts) == 1 else tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *parts)


def array_batches(arrays: Any, positions: np.ndarray) -> tf.data.Dataset:
    """Batches of arrays that lie in memory in the order of an epoch, without a function between them and training.

    Args:
        arrays: a nest of arrays with a row for each place in the epoch.
        positions: the places that make up each batch, as `epoch_positions` gives them.

    Example:
        >>> [batch.tolist() for batch in array_batches(np.arange(5), epoch_positions(5, 2)).as_numpy_iterator()]
        [[0, 1], [2, 3]]
    """
    with tf.device("/CPU:0"):
        return untuned(tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(lambda a: a[positions], arrays)))
