"""Several small epochs that lie in memory, so that neither an iterator nor a thread stands between two steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.data.sources import ArrayFeed, ArraySource


class JoinedEpochs(ArrayFeed):
    """The batches of several consecutive epochs.

    Args:
        dataset: full batches, dense and all of one shape, of a known number. It is read at once.
        global_batch_size: rows of each.
    """

    def __init__(self, dataset: tf.data.Dataset, global_batch_size: int) -> None:
        with tf.device("/CPU:0"):
            batches = dataset.batch(int(dataset.cardinality())).get_single_element()
            rows = tf.nest.map_structure(lambda a: tf.reshape(a, [-1, *a.shape[2:]]), batches)
        source = ArraySource(rows, global_batch_size=global_batch_size)
        super().__init__(source, np.arange(tf.nest.flatten(rows)[0].shape[0], dtype=np.int64))
        self._end = 0

    def begin(self, num_batches: int) -> None:
        """Starts an epoch of so many batches."""
        self._end = self._step + num_batches

    @property
    def exhausted(self) -> bool:
        """Whether every batch of the epoch has been used."""
        return self._step >= self._end

    def arguments(self, num_steps: int) -> tuple[Any, int]:
        """Arguments of the next graph call and how many steps it may run."""
        return super().arguments(min(num_steps, self._end - self._step))

    def take_iterator(self) -> None:
        """There is none to let go of."""


def num_bytes_of_batch(batch_spec: Any, global_batch_size: int) -> int:
    """What a batch takes; 0 where that is not known, or where batches are not dense numbers of one shape.

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
