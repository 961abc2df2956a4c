"""The row orders of passes over arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

_MAX_SEED = 2**31 - 1  # as in `tf.random.set_seed`


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
