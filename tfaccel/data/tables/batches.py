"""Batches of a tabular set as `tf.data`, in an order determined by seed and epoch."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfaccel.data.epochs import InMemory
from tfaccel.data.tables.tabular_set import TabularPart, TabularSet


class TabularBatches(InMemory):
    """The batches of a tabular set: inputs, targets and, if classes have weights, a weight for each training row.

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
        identity = np.eye(len(data.encoding.class_names), dtype=np.float32) if one_hot else None
        weights = None if data.class_weights is None else data.class_weights.astype(np.float32)

        def rows_of(part: TabularPart, rows: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
            goal = part.targets[rows]
            goal = goal[..., np.newaxis] if identity is None else identity[goal]
            return {name: array[rows] for name, array in part.inputs.items()}, goal

        def read(rows: np.ndarray) -> tuple[Any, ...]:
            batch = rows_of(data.train, rows)
            return batch if weights is None else (*batch, weights[data.train.targets[rows]])

        test = rows_of(data.test, np.arange(len(data.test.targets)))
        super().__init__(read, num_examples=len(data.train.targets), test=test, noun="rows")
