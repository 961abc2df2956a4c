"""Epochs whose rows are in memory, so that no iterator or thread delays the next step."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import tensorflow as tf

from tfaccel.data.sources import ArrayFeed, ArraySource


class EpochsInMemory(ArrayFeed):
    """The batches of one or several consecutive epochs.

    Args:
        arrays: nest of tensors with one row for each example.
        order: the row numbers of the epochs, int64. Only one epoch may end with a smaller batch.
        global_batch_size: rows of each batch.
    """

    def __init__(self, arrays: Any, order: np.ndarray, global_batch_size: int) -> None:
        super().__init__(ArraySource(arrays, global_batch_size=global_batch_size), order)
        self._end = 0

    @classmethod
    def of_dataset(cls, dataset: tf.data.Dataset, global_batch_size: int) -> Self:
        """The epochs in a dataset of a known number of full, dense batches of equal shape. It is read at once."""
        with tf.device("/CPU:0"):
            batches = dataset.batch(int(dataset.cardinality())).get_single_element()
            rows = tf.nest.map_structure(lambda a: tf.reshape(a, [-1, *a.shape[2:]]), batches)
        return cls(rows, np.arange(tf.nest.flatten(rows)[0].shape[0], dtype=np.int64), global_batch_size)

    def begin(self, num_batches: int) -> None:
        """Starts an epoch of `num_batches`."""
        self._end = self.num_used + num_batches

    @property
    def exhausted(self) -> bool:
        """Whether every batch of the epoch has been used."""
        return self.num_used >= self._end

    def arguments(self, num_steps: int) -> tuple[Any, int]:
        """Arguments of the next graph call, and the maximum number of its steps."""
        return super().arguments(min(num_steps, self._end - self.num_used))

    def take_iterator(self) -> None:
        """None: there is no iterator to release."""


def num_bytes_of_batch(batch_spec: Any, global_batch_size: int) -> int:
    """The size of a batch; 0 if it is unknown, or if batches are not dense numbers of fixed shape.

    Example:
        >>> num_bytes_of_batch((tf.TensorSpec([8, 3], tf.float32), tf.TensorSpec([8], tf.int64)), 8)
        160
        >>> num_bytes_of_batch(tf.TensorSpec([None, 3], tf.float32), 8)
        0
    """
    specs = tf.nest.flatten(batch_spec)
    dense = all(isinstance(spec, tf.TensorSpec) and spec.dtype != tf.string for spec in specs)
    if not dense or not all(spec.shape.is_fully_defined() and spec.shape[:1] == [global_batch_size] for spec in specs):
        return 0
    return sum(spec.shape.num_elements() * spec.dtype.size for spec in specs)
