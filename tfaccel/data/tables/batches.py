"""Batches of a tabular set as `tf.data`, in an order determined by seed and epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.data.epoch_positions import Shard, epoch_positions
from tfaccel.data.ordered_map import untuned
from tfaccel.data.pipeline import array_batches
from tfaccel.data.tables.tabular_set import TabularSet


class TabularBatches:
    """The batches of a tabular set.

    Args:
        data: the tabular set.
        one_hot: whether to one-hot encode the classes.

    Example:
        >>> from tfaccel.data.tables.options import TableOptions
        >>> from tfaccel.data.tables.tabular_files import embedded_table
        >>> from tfaccel.data.tables.tabular_set import make_tabular_set
        >>> wine = make_tabular_set(embedded_table("wine"), TableOptions(target="target"), classification=True)
        >>> inputs, labels = next(iter(TabularBatches(wine, one_hot=True).train(32, seed=0, epoch=0)))
        >>> inputs["numbers"].shape, labels.shape
        (TensorShape([32, 13]), TensorShape([32, 3]))
    """

    def __init__(self, data: TabularSet, *, one_hot: bool = False) -> None:
        self._data = data
        self._identity = np.eye(len(data.encoding.class_names), dtype=np.float32) if one_hot else None

    def train(
        self,
        global_batch_size: int,
        *,
        seed: int,
        epoch: int,
        start_step: int = 0,
        shard: Shard | None = None,
        num_epochs: int = 1,
    ) -> tf.data.Dataset:
        """Training batches: inputs, targets and, if classes have weights, a sample weight for each row.

        All batches are full; each epoch drops different leftover rows. Takes the arguments and raises the errors of
        `tfaccel.data.pipeline.Pipeline.train`.
        """
        num_rows = len(self._data.train.targets)
        positions = epoch_positions(
            num_rows, global_batch_size, start_step=start_step, shard=shard, noun="rows", num_epochs=num_epochs
        )
        order = np.concatenate(
            [np.random.default_rng([seed, epoch + i]).permutation(num_rows) for i in range(num_epochs)]
        )
        batch: tuple[Any, ...] = self._rows(self._data.train.inputs, self._data.train.targets, order)
        if self._data.class_weights is not None:
            batch += (self._data.class_weights.astype(np.float32)[self._data.train.targets[order]],)
        return array_batches(batch, positions)

    def test(self, global_batch_size: int) -> tf.data.Dataset:
        """The test rows in order, without weights; the last batch may be smaller."""
        part = self._data.test
        rows = self._rows(part.inputs, part.targets, np.arange(len(part.targets)))
        with tf.device("/CPU:0"):
            return untuned(tf.data.Dataset.from_tensor_slices(rows).batch(global_batch_size))

    def _rows(
        self, inputs: Mapping[str, np.ndarray], targets: np.ndarray, rows: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        goal = targets[rows]
        goal = goal[:, np.newaxis] if self._identity is None else self._identity[goal]
        return {name: array[rows] for name, array in inputs.items()}, goal
