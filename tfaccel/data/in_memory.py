"""Epochs of examples in memory: of all their columns, or of as many as the longest example of each batch fills."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.epochs import Epochs, Part, ordered_map, untuned
from tfaccel.errors import DataError

if TYPE_CHECKING:
    import tensorflow as tf

RandomChange = Callable[[Any, np.random.Generator], Any]
_COLUMNS = 8  # batches are cut to a multiple: few shapes to compile, and sizes that tensor cores like
_POOL = 8, 50  # the least and the most batches that are sorted together; in between, a quarter of the epoch


class InMemory(Epochs):
    """Batches of examples in memory: texts, tables, rows of numbers, sequences of a long text.

    Args:
        read: `read(rows)` returns the training examples in these rows: a nest of arrays whose first dimensions are
            those of `rows`.
        num_examples: positions in an epoch.
        test: the test examples in order, a nest of arrays.
        order: `order(generator, global_batch_size)` draws the row at each position of an epoch; None for a random order
            of all rows.
        change: `change(examples, generator)` returns the randomly augmented examples of an epoch; None for none.
        noun: what examples are called in messages.
    """

    def __init__(
        self,
        read: Callable[[np.ndarray], Any],
        *,
        num_examples: int,
        test: Any,
        order: Callable[[np.random.Generator, int], np.ndarray] | None = None,
        change: RandomChange | None = None,
        noun: str = "examples",
    ) -> None:
        self._read, self._num_examples, self._test, self._change, self._noun = read, num_examples, test, change, noun
        self._order = order or (lambda generator, _: generator.permutation(num_examples))

    def get_batches(self, part: Part) -> tf.data.Dataset:
        """The batches of a part of the training data."""
        import tensorflow as tf

        num, size, change = self._num_examples, part.global_batch_size, self._change
        if change is None or not part.augmented:
            return self._dataset(self._read(self._rows(part)))
        num_used = num // size * size
        positions = part.positions(num_used or num, self._noun)
        epochs = part.drawn(lambda generator: change(self._read(self._order(generator, size)[:num_used]), generator))
        return self._dataset(tf.nest.map_structure(lambda array: array[positions], epochs))

    def _rows(self, part: Part) -> np.ndarray:
        """The rows of each batch."""
        positions = part.positions(self._num_examples, self._noun)
        rows: np.ndarray = part.drawn(lambda generator: self._order(generator, part.global_batch_size))[positions]
        return rows

    def test(self, global_batch_size: int) -> tf.data.Dataset:
        """The test examples in order; the last batch may be smaller."""
        return self._dataset(self._test, global_batch_size)

    def _dataset(self, arrays: Any, batch_size: int | None = None) -> tf.data.Dataset:
        """The rows of arrays; no function runs on them."""
        import tensorflow as tf

        with tf.device("/CPU:0"):
            rows = tf.data.Dataset.from_tensor_slices(arrays)
            return untuned(rows if batch_size is None else rows.batch(batch_size))


class TextBatches(InMemory):
    """Batches of in-memory arrays.

    Args:
        train: the training examples: a nest of arrays (tuples and dictionaries) with one row per example.
        test: the test examples, likewise.
        change: `change(train, generator)` returns the randomly augmented training arrays of an epoch; None for no
            augmentation.
        noun: what examples are called in messages.
        lengths: for batches of examples with similar lengths: a nest like `train` with the number of columns that each
            example fills (integers), and None in the place of an array that is no sequence. Arrays are cut to the
            longest example of the batch, in steps of eight columns: a model whose inputs have any length, and which
            masks what is not filled, learns the same and computes less. None for batches of all columns.

    Raises:
        DataError: if lengths are not those of the rows of their array.

    Example:
        >>> batches = TextBatches(train=(np.zeros((8, 5)), np.arange(8)), test=(np.zeros((3, 5)), np.arange(3)))
        >>> tokens, labels = next(iter(batches.train(4, seed=0, epoch=0)))
        >>> tokens.shape, labels.shape
        (TensorShape([4, 5]), TensorShape([4]))

        Texts of one and of 30 tokens never share a batch:

        >>> tokens, lengths = np.ones((8, 32)), np.array([1, 30] * 4)
        >>> batches = TextBatches(train=tokens, test=tokens, lengths=lengths)
        >>> sorted(batch.shape[1] for batch in batches.train(4, seed=0, epoch=0))
        [8, 32]
        >>> [round(share, 2) for share in batches.shares_of_padding(4)]
        [0.22, 0.52]

    Reference:
        Khomenko et al., Accelerating recurrent neural network training using sequence bucketing and multi-GPU data
            parallelization, 2016, https://arxiv.org/abs/1708.05604
    """

    def __init__(
        self,
        train: Any,
        test: Any,
        *,
        change: RandomChange | None = None,
        noun: str = "examples",
        lengths: Any = None,
    ) -> None:
        import tensorflow as tf

        def read(rows: np.ndarray) -> Any:
            return tf.nest.map_structure(lambda array: array[rows], train)

        arrays = tf.nest.flatten(train)
        of_arrays = [None] * len(arrays) if lengths is None else tf.nest.flatten(lengths)
        self._is_cut = [one is not None for one in of_arrays]
        cut = [(array, one) for array, one in zip(arrays, of_arrays, strict=True) if one is not None]
        self._lengths = [_checked(array, one) for array, one in cut]
        self._widths = np.array([array.shape[1] for array, _ in cut])
        by_length = functools.partial(order_by_length, self._lengths) if cut else None
        super().__init__(read, num_examples=len(arrays[0]), test=test, order=by_length, change=change, noun=noun)

    def get_batches(self, part: Part) -> tf.data.Dataset:
        """The batches of a part of the training data."""
        import tensorflow as tf

        batches = super().get_batches(part)
        if not self._lengths:
            return batches

        def cut(batch: Any, columns: tf.Tensor) -> Any:
            stops = iter(tf.unstack(columns, num=len(self._lengths)))
            leaves = zip(tf.nest.flatten(batch), self._is_cut, strict=True)
            return tf.nest.pack_sequence_as(
                batch, [leaf[:, : next(stops)] if is_cut else leaf for leaf, is_cut in leaves]
            )

        with tf.device("/CPU:0"):
            columns = tf.data.Dataset.from_tensor_slices(
                self._columns(self._rows(dataclasses.replace(part, shard=None)))
            )
            return ordered_map(tf.data.Dataset.zip((batches, columns)), cut)

    def _columns(self, rows: np.ndarray) -> np.ndarray:
        """The columns of each batch, of each sequence: as many as its rows fill, which are those of all workers."""
        filled = np.stack([lengths[rows].max(axis=1) for lengths in self._lengths], axis=1)
        return np.minimum(_rounded(np.maximum(filled, 1)), self._widths)

    def shares_of_padding(self, global_batch_size: int) -> tuple[float, float]:
        """The share of the first epoch's columns that are padding: in its batches, and if they had all columns."""
        part = Part(global_batch_size=global_batch_size, seed=0, epoch=0)
        rows = self._rows(part)
        columns = self._columns(rows)
        filled = sum(int(lengths[rows].sum()) for lengths in self._lengths)
        return 1 - filled / int(columns.sum() * global_batch_size), 1 - filled / int(self._widths.sum() * rows.size)


def order_by_length(lengths: Sequence[np.ndarray], generator: np.random.Generator, batch_size: int) -> np.ndarray:
    """A random order of rows in which those of a batch have similar lengths.

    Rows are drawn at random into pools of 8 to 50 batches, those of a pool are sorted, and all batches are then put in
    a random order. So an epoch sees every row once, and its batches differ from those of the last.

    Args:
        lengths: of every row: those of one sequence, or of several, of which the first counts first.
        generator: draws the order.
        batch_size: rows of a batch; what does not fill one comes last, whatever its length.

    Example:
        >>> lengths = np.array([3, 19, 12, 18, 2])
        >>> order = order_by_length([lengths], np.random.default_rng(0), 2)
        >>> sorted(sorted(lengths[order[first : first + 2]].tolist()) for first in (0, 2))
        [[2, 3], [12, 18]]
    """
    order = generator.permutation(len(lengths[0]))
    num_batches = len(order) // batch_size
    used, left = np.split(order, [num_batches * batch_size])
    least, most = _POOL
    pool = min(max(num_batches // 4, least), most) * batch_size
    for first in range(0, len(used), pool):
        rows = used[first : first + pool]
        used[first : first + pool] = rows[np.lexsort([_rounded(one[rows]) for one in reversed(lengths)])]
    batches = generator.permutation(used.reshape(num_batches, batch_size))
    return np.concatenate([batches.ravel(), left])


def _rounded(lengths: np.ndarray) -> np.ndarray:
    """Lengths, rounded up to those that batches are cut to."""
    rounded: np.ndarray = -(-lengths // _COLUMNS) * _COLUMNS
    return rounded


def filled_columns(arrays: np.ndarray) -> np.ndarray:
    """The number of columns of each row up to its last value that is not zero.

    Example:
        >>> filled_columns(np.array([[5, 0, 6, 0], [0, 0, 0, 0]])).tolist()
        [3, 0]
    """
    is_filled = np.asarray(arrays) != 0
    last = is_filled.shape[1] - is_filled[:, ::-1].argmax(axis=1)
    return np.where(is_filled.any(axis=1), last, 0)


def _checked(array: np.ndarray, lengths: Any) -> np.ndarray:
    """Lengths as an array; raises DataError unless there is a possible one for each row of the array they are of."""
    lengths = np.asarray(lengths)
    num_rows, *widths = array.shape
    if lengths.shape != (num_rows,) or not widths or not np.isin(lengths, range(widths[0] + 1)).all():
        raise DataError(
            "`lengths` must say how many columns each row of an array fills. Received: "
            f"{lengths.tolist()!s:.40} for an array of shape {array.shape}."
        )
    return lengths
