"""Input pipelines: shuffled by index, read in parallel, cached where they fit, batched and augmented."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.cache import CacheOptions, ExampleCache
from tfaccel.data.epochs import Epochs, Part, Reader, ordered_map
from tfaccel.errors import DataError
from tfaccel.short_repr import noun

if TYPE_CHECKING:
    import tensorflow as tf

AUTOMATIC = CacheOptions()


@noun(kw_only=False)
class Augmentation:
    """The random augmentation of the examples of a batch.

    Args:
        draw: `draw(generator, num_examples)` returns the random numbers of an epoch: a nest of arrays, each with a row
            for every position in the epoch.
        apply: `apply(examples, numbers)` augments a batch with the numbers drawn for its positions. It is traced.
    """

    draw: Callable[[np.random.Generator, int], Any]
    apply: Callable[[Any, Any], Any]


class Pipeline(Epochs):
    """Batches of examples that are read by row number.

    Args:
        read: `read(rows)` takes row numbers (an int64 tensor of shape (num_rows,)) and returns a nest of tensors with
            as many rows. It is traced, and called from several threads.
        num_examples: total number of rows.
        prepare: `prepare(examples)` is applied to every batch, after the cache: whatever makes examples larger (such
            as a cast to float32) belongs here. It is traced.
        augmentation: random augmentation of training batches, after batching and preparation.
        cache: where examples are kept once read; None for no cache, if they are in memory already.
        noun: what examples are called in messages.
        test: makes the pipeline of the examples to test with, on first use; None for the same ones.

    Example:
        >>> import tensorflow as tf
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
        test: Callable[[], Pipeline] | None = None,
    ) -> None:
        self._source = read
        self._num_examples = num_examples
        self._prepare = prepare or (lambda examples: examples)
        self._augmentation = augmentation
        self._cache = cache
        self._noun = noun
        self._tested = functools.cache(test or (lambda: self))
        self._traced: dict[tuple[int, bool, bool], Callable[..., Any]] = {}

    def get_batches(self, part: Part) -> tf.data.Dataset:
        """The batches of a part of the training data; for data workers without a cache, which belongs to one process.

        With `augmented=False`, they are batches for `augment`; this has no effect without an augmentation.
        """
        import tensorflow as tf

        positions = part.positions(self._num_examples, self._noun)
        numbers = part.drawn(self._numbers)
        with tf.device("/CPU:0"):
            steps = tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(lambda array: array[positions], numbers))
        batch = self._batch(positions.shape[1], steps.element_spec, part.augmented, part.every is None)
        return ordered_map(steps, batch)

    def _numbers(self, generator: np.random.Generator) -> tuple[Any, ...]:
        """Everything random about an epoch, by position: the example, and the numbers that augment it."""
        numbers: tuple[Any, ...] = (generator.permutation(self._num_examples),)
        if self._augmentation is not None:
            numbers += (self._augmentation.draw(generator, self._num_examples),)
        return numbers

    def augment(self, batch: tuple[Any, Any]) -> Any:
        """Augments a batch that `train` made with `augmented=False`. It can be traced.

        Args:
            batch: examples and the random numbers drawn for them, or some rows of both.
        """
        return batch[0] if self._augmentation is None else self._augmentation.apply(*batch)

    def test(self, global_batch_size: int) -> tf.data.Dataset:
        """The test examples in order, without augmentation; the last batch may be smaller."""
        return self._tested().in_order(global_batch_size)

    def in_order(self, global_batch_size: int) -> tf.data.Dataset:
        """The examples themselves in order, without augmentation; the last batch may be smaller."""
        import tensorflow as tf

        return ordered_map(tf.data.Dataset.range(self._num_examples).batch(global_batch_size), self._prepared)

    @functools.cached_property
    def _prepared(self) -> Reader:
        """Reads and prepares examples; the cache is created on first access, outside of any graph."""
        read = self._source
        if self._cache is not None:
            read = ExampleCache(read, num_examples=self._num_examples, options=self._cache, noun=self._noun).read
        return lambda rows: self._prepare(read(rows))

    @functools.cached_property
    def _uncached(self) -> Reader:
        """Reads and prepares examples, in any process."""
        if self._cache is not None and self._cache.place in ("memory", "disk"):
            raise DataError(
                f"The {self._noun} are to be cached (place={self._cache.place!r}), but a cache belongs to one process, "
                'and data workers are others. Use place="none" or "auto" (--cache=none), or no data workers.'
            )
        return lambda rows: self._prepare(self._source(rows))

    def _batch(self, num_rows: int, specs: tuple[Any, ...], augmented: bool, cached: bool) -> Callable[..., Any]:
        """The function that makes a training batch, traced once rather than in every epoch."""
        import tensorflow as tf

        prepared = self._prepared if cached else self._uncached
        key = num_rows, augmented, cached
        if key not in self._traced:

            def batch(rows: tf.Tensor, numbers: Any = None) -> Any:
                examples = prepared(rows), numbers
                return self.augment(examples) if augmented else examples

            self._traced[key] = tf.function(batch, autograph=False).get_concrete_function(*specs)
        return self._traced[key]
