"""Epochs: the part of the training data that is asked for, and where its order and other random numbers are drawn.

Everything random about an epoch is drawn by NumPy from seed and epoch, and belongs to a position in it. So an epoch is
the same in any process, can start at any step without reading what comes before, and can be divided among workers: each
reads only its own rows of every batch.
"""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.errors import DataError

if TYPE_CHECKING:
    import tensorflow as tf

Shard = tuple[int, int]
Every = tuple[int, int]
_MAX_PARALLEL_CALLS = 8
_MAX_SEED = 2**31 - 1  # as in `tf.random.set_seed`

Reader = Callable[["tf.Tensor"], Any]  # from row numbers to examples, in a graph


@dataclass(frozen=True, kw_only=True)
class Part:
    """The part of the training data that is asked for: batches of one or more epochs.

    Args:
        global_batch_size: examples in a batch, over all workers. Examples that do not fill a batch are dropped.
        seed, epoch: determine the content of the epoch.
        start_step: index of the first batch; those before it are not read.
        shard: (index, count): only the rows of worker `index`, from 0, out of `count` in each batch; None for all.
        augmented: if False, batches are yielded before augmentation.
        num_epochs: number of consecutive epochs, starting with `epoch`; `start_step` counts in the first. Preparing
            epochs of a few steps one by one takes as long as training on them.
        every: (index, count): only every `count`-th batch, from the `index`-th after `start_step` on, as data workers
            prepare them; None for all.

    Example:
        >>> part = Part(global_batch_size=4, seed=0, epoch=0, start_step=1, shard=(1, 2))
        >>> part.positions(11).tolist(), part.steps(1)
        ([[6, 7]], slice(1, 2, 1))
    """

    global_batch_size: int
    seed: int
    epoch: int
    start_step: int = 0
    shard: Shard | None = None
    augmented: bool = True
    num_epochs: int = 1
    every: Every | None = None

    def positions(self, num_examples: int, noun: str = "examples") -> np.ndarray:
        """The positions in an epoch, from 0, that make up each of its batches.

        Args:
            num_examples: positions in an epoch. Those of a second epoch begin at this number, and so on.
            noun: what examples are called in messages.

        Returns:
            int64, of shape (num_epochs * num_steps - start_step, rows), or a `count`-th of it with `every`.

        Raises:
            DataError: if there are too few examples for one batch, or the shard or step is out of range.

        Example:
            >>> Part(global_batch_size=2, seed=0, epoch=0, start_step=1, num_epochs=2).positions(5).tolist()
            [[2, 3], [5, 6], [7, 8]]
            >>> Part(global_batch_size=1, seed=0, epoch=0, start_step=1, every=(1, 3)).positions(7).tolist()
            [[2], [5]]
        """
        size = self.global_batch_size
        check_one_batch(num_examples, size, noun)
        num_steps = num_examples // size
        if not 0 <= self.start_step <= num_steps:
            raise DataError(f"An epoch has {num_steps} full batches. Received: start_step={self.start_step}.")
        start, stop = shard_rows(size, self.shard)
        epochs, steps = np.divmod(np.arange(self.start_step, self.num_epochs * num_steps, dtype=np.int64), num_steps)
        index, count = self.every or (0, 1)
        firsts = (epochs * num_examples + steps * size)[index::count]
        return firsts[:, np.newaxis] + np.arange(start, stop, dtype=np.int64)

    def steps(self, num_batches: int) -> slice:
        """The steps of the epoch that a number of batches belong to.

        Example:
            >>> Part(global_batch_size=1, seed=0, epoch=0, start_step=10, every=(1, 2)).steps(3)
            slice(11, 16, 2)
        """
        index, count = self.every or (0, 1)
        first = self.start_step + index
        return slice(first, max(first, first + (num_batches - 1) * count + 1), count)

    def generator(self, *stream: int) -> np.random.Generator:
        """The random numbers of the epoch; those of different streams are independent.

        Raises:
            DataError: if there are several epochs.
        """
        if self.num_epochs != 1:
            raise DataError(f"These batches are made of one epoch at a time. Received: num_epochs={self.num_epochs}.")
        return np.random.default_rng([self.seed, self.epoch, *stream])

    def drawn(self, draw: Callable[[np.random.Generator], Any]) -> Any:
        """What `draw` returns for each epoch, joined: a nest of arrays with a row for each position."""
        import tensorflow as tf

        epochs = [draw(np.random.default_rng([self.seed, self.epoch + i])) for i in range(self.num_epochs)]
        return epochs[0] if len(epochs) == 1 else tf.nest.map_structure(lambda *one: np.concatenate(one), *epochs)

    def own_rows(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """The shard's rows of full global batches that were made as a whole because their rows depend on each other.

        Example:
            >>> import tensorflow as tf
            >>> whole = tf.data.Dataset.range(4).batch(2)
            >>> part = Part(global_batch_size=2, seed=0, epoch=0, shard=(1, 2))
            >>> [batch.tolist() for batch in part.own_rows(whole).as_numpy_iterator()]
            [[1], [3]]
        """
        import tensorflow as tf

        if self.shard is None:
            return batches
        start, stop = shard_rows(self.global_batch_size, self.shard)

        def rows(*batch: Any) -> Any:
            return tf.nest.map_structure(lambda leaf: leaf[start:stop], batch if len(batch) > 1 else batch[0])

        return batches.map(rows)


def shard_rows(global_batch_size: int, shard: Shard | None) -> tuple[int, int]:
    """The start and stop row of a worker's shard of a global batch; all rows without a shard.

    Shards are contiguous, in the order of the workers, and differ by at most one row.

    Raises:
        DataError: if the shard does not exist or would be empty.

    Example:
        >>> [shard_rows(5, (index, 2)) for index in range(2)]
        [(0, 3), (3, 5)]
    """
    index, count = shard or (0, 1)
    if not 0 <= index < count <= global_batch_size:
        raise DataError(
            "A shard must be (index, count) with an index from 0 below count, and count at most the global batch size. "
            f"Received: shard={shard}, global_batch_size={global_batch_size}."
        )
    return -(-global_batch_size * index // count), -(-global_batch_size * (index + 1) // count)


def check_one_batch(num_rows: int | None, global_batch_size: int, noun: str = "examples") -> None:
    """Raises DataError if the examples (called `noun` in the message) are known not to fill one batch.

    Example:
        >>> check_one_batch(3, 4)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        tfaccel.errors.DataError: A batch takes 4 examples, but there are 3 to train on. Use a ...
    """
    if num_rows is not None and num_rows < global_batch_size:
        raise DataError(
            f"A batch takes {global_batch_size} {noun}, but there are {num_rows} to train on. "
            f"Use a global batch size of at most {num_rows}."
        )


class Epochs(ABC):
    """Training batches by part, and test batches; `make` of `Batches` returns such an object."""

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
        every: Every | None = None,
    ) -> tf.data.Dataset:
        """Full batches of one or more epochs; each epoch drops different leftover examples.

        All batches have the same shape, for XLA and so that every replica gets an equal share.

        Args:
            global_batch_size, seed, epoch, start_step, shard, augmented, num_epochs, every: see
                `tfaccel.data.epochs.Part`.

        Raises:
            DataError: if there are too few examples for one batch, the step or shard is out of range, or batches for
                data workers must be cached.
        """
        return self.get_batches(
            Part(
                global_batch_size=global_batch_size,
                seed=seed,
                epoch=epoch,
                start_step=start_step,
                shard=shard,
                augmented=augmented,
                num_epochs=num_epochs,
                every=every,
            )
        )

    @abstractmethod
    def get_batches(self, part: Part) -> tf.data.Dataset:
        """The batches of a part of the training data."""

    @abstractmethod
    def test(self, global_batch_size: int) -> tf.data.Dataset:
        """The test examples in order, without augmentation; the last batch may be smaller."""


def gathered(arrays: Any) -> Reader:
    """A function from row numbers to rows of a nest of arrays, which become tensors in host memory.

    Example:
        >>> import tensorflow as tf
        >>> gathered(np.array([5, 6, 7]))(tf.constant([2, 0])).numpy().tolist()
        [7, 5]
    """
    import tensorflow as tf

    with tf.device("/CPU:0"):
        tensors = tf.nest.map_structure(tf.constant, arrays)
    return lambda rows: tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), tensors)


def ordered_map(dataset: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    """Maps a function over a dataset in as many parallel calls as there are cores, at most eight, and keeps the order.

    tf.data's autotuning is off: the end of an epoch would wait for its thread, up to seconds. The function is traced
    without AutoGraph.

    Example:
        >>> import tensorflow as tf
        >>> [int(number) for number in ordered_map(tf.data.Dataset.range(3), lambda number: 10 * number)]
        [0, 10, 20]
    """
    import tensorflow as tf

    num_calls = min(len(os.sched_getaffinity(0)), _MAX_PARALLEL_CALLS)
    return untuned(dataset.map(tf.autograph.experimental.do_not_convert(function), num_parallel_calls=num_calls))


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset without autotuning, and with deterministic order."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    options.deterministic = True
    return dataset.with_options(options)


def order_of_keras(num_rows: int, batch_size: int, *, shuffle: bool | str, seed: int) -> Callable[[int], np.ndarray]:
    """The row order of `Model.fit` after `tf.random.set_seed(seed)`: the same in every pass.

    Args:
        num_rows: rows of the arrays.
        batch_size: rows of a batch.
        shuffle: "batch" (inside each batch) or True (all rows).
        seed: the global seed, as of `keras.utils.set_random_seed`.
    """
    import tensorflow as tf

    if num_rows == 0:
        return lambda _: np.zeros(0, np.int64)
    size = batch_size if shuffle == "batch" else num_rows
    seeds = (seed % _MAX_SEED, 0)
    first, second = (0, _MAX_SEED) if seeds == (0, 0) else seeds

    def shuffled(rows: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.RandomShuffle(value=rows, seed=first, seed2=second)

    with tf.device("/CPU:0"):
        rows = row_batches(np.arange(num_rows, dtype=np.int64), size).map(shuffled).rebatch(num_rows)
        order: np.ndarray = rows.get_single_element().numpy()
    return lambda _: order


def row_batches(rows: np.ndarray, batch_size: int, *, drop_remainder: bool = False) -> tf.data.Dataset:
    """The row numbers of each batch. One slice each: to batch single numbers takes a microsecond for every row.

    Args:
        rows: int64, in the order of a pass.
        batch_size: rows of a batch.
        drop_remainder: whether to leave out a last batch that is smaller, and so give batches a static shape.

    Example:
        >>> [batch.tolist() for batch in row_batches(np.arange(5), 2).as_numpy_iterator()]
        [[0, 1], [2, 3], [4]]
    """
    import tensorflow as tf

    full = len(rows) // batch_size * batch_size
    batches = tf.data.Dataset.from_tensor_slices(rows[:full].reshape(-1, batch_size))
    if drop_remainder:
        return batches
    return batches.concatenate(tf.data.Dataset.from_tensors(rows[full:]).take(int(full < len(rows))))


def random_order(num_rows: int, batch_size: int, *, shuffle: bool | str, seed: int) -> Callable[[int], np.ndarray]:
    """An order that differs in every pass and depends only on seed and pass; arguments as in `order_of_keras`."""

    def order(number: int) -> np.ndarray:
        rows = np.arange(num_rows, dtype=np.int64)
        generator = np.random.default_rng([seed, number])
        if shuffle != "batch":
            return generator.permutation(rows)
        return np.concatenate(
            [generator.permutation(rows[first : first + batch_size]) for first in range(0, num_rows, batch_size)]
        )

    return order


class Batches:
    """The data that `tfaccel.Workload(data=...)` takes. Creating it does not import TensorFlow, so a run can be planned
    first.

    Args:
        source: the data behind the batches, such as a table; for reporting results (`workload.data.source`).
        make: `make()` returns an object with `train(global_batch_size, *, seed, epoch, start_step, shard)` and
            `test(global_batch_size)`, like `tfaccel.data.Pipeline`. It is called once, on first use.
        num_train_examples: examples in one epoch.
        several_epochs: whether `train` also takes `num_epochs`, the number of consecutive epochs.
        takes_every: whether `train` also takes `every`, so that several data workers can prepare the batches; see
            `tfaccel.Workload`.
        raw_input: the raw data behind the model's tensors; see `tfaccel.Workload`.

    Example:
        >>> import types
        >>> made = types.SimpleNamespace(train=print, test=lambda size: [size])
        >>> data = Batches("text", lambda: made, num_train_examples=8, takes_every=True)
        >>> data.validation_data(4), list(inspect.signature(data.train_data).parameters)
        ([4], ['global_batch_size', 'seed', 'epoch', 'start_step', 'shard', 'every'])
    """

    takes_augmented = False  # whether `train` also takes `augmented`

    def __init__(
        self,
        source: Any,
        make: Callable[[], Any],
        *,
        num_train_examples: int,
        several_epochs: bool = False,
        takes_every: bool = False,
        raw_input: Any = None,
    ) -> None:
        self.source = source
        self.num_train_examples = num_train_examples
        self.raw_input = raw_input
        self._make, self._made = make, None
        optional = {"augmented": self.takes_augmented, "num_epochs": several_epochs, "every": takes_every}
        signature = inspect.signature(Epochs.train)
        first, *rest = [one for name, one in signature.parameters.items() if optional.get(name, True)][1:]
        self._taken = tuple(one.name for one in rest)

        def train_data(*args: Any, **options: Any) -> Any:
            given = taken.bind(*args, **options)
            return self.get_batches(Part(**given.arguments))

        taken = signature.replace(parameters=[first, *rest])
        train_data.__signature__ = taken  # type: ignore[attr-defined]
        self.train_data: Callable[..., Any] = train_data

    def made(self) -> Any:
        """The object that `make` returned, the same at every call."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def get_batches(self, part: Part) -> Any:
        """The batches of a part of the training data."""
        return self.made().train(part.global_batch_size, **{name: getattr(part, name) for name in self._taken})

    def validation_data(self, global_batch_size: int) -> Any:
        """The test examples in order."""
        return self.made().test(global_batch_size)
