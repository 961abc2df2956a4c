"""Dense gradients of large embedding tables, of which a step writes only the rows of its batch.

TensorFlow's Adam kernel takes dense gradients only. Filling a new one with zeros takes as long as writing the whole
table, so it is kept in memory: each step clears the rows of the last batch, and writes its own.
"""

from __future__ import annotations

import weakref
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private.private_slots import plain_variable
from tfaccel.training.private.private_step_state import SCRATCH


class RowGradient:
    """The dense gradient of one table.

    Args:
        table: of any rank, on a CPU.
    """

    def __init__(self, table: tf.Variable) -> None:
        with tf.init_scope(), tf.device(table.device):
            self._dense = plain_variable(tf.zeros(table.shape, table.dtype), "row_gradient")
            self._rows = plain_variable(tf.zeros([0], tf.int32), "rows_that_are_not_zero", shape=[None])
            self._places = plain_variable(tf.zeros(table.shape[:1], tf.int32), "last_place_of_a_row")
        for variable in (self._dense, self._rows, self._places):
            setattr(variable, SCRATCH, True)

    def of(self, slices: tf.IndexedSlices) -> tuple[tf.Tensor, tf.IndexedSlices]:
        """The dense gradient, with the last slice of each row; and the other slices of rows that occur repeatedly.

        A step that fails between two operations leaves nothing behind: rows are noted before they are written, and only
        once all rows that were noted before are zero, and none of the new ones is beyond the table.
        """
        raw, rows, places = tf.raw_ops, tf.cast(slices.indices, tf.int32), tf.range(tf.size(slices.indices))
        earlier = self._rows.read_value()
        zeros = tf.zeros([tf.size(earlier), *self._dense.shape[1:]], self._dense.dtype)
        cleared = raw.ResourceScatterUpdate(resource=self._dense.handle, indices=earlier, updates=zeros)
        placed = raw.ResourceScatterUpdate(resource=self._places.handle, indices=rows, updates=places)
        with tf.control_dependencies([cleared, placed]):
            noted = self._rows.assign(rows)
        with tf.control_dependencies([noted]):
            raw.ResourceScatterUpdate(resource=self._dense.handle, indices=rows, updates=slices.values)
        raw.DisableCopyOnRead(resource=self._dense.handle)  # or each read would copy it
        dense = raw.ReadVariableOp(resource=self._dense.handle, dtype=self._dense.dtype)

        last = raw.ResourceGather(resource=self._places.handle, indices=rows, dtype=tf.int32)
        others = tf.where(tf.not_equal(last, places))[:, 0]
        return dense, tf.IndexedSlices(tf.gather(slices.values, others), tf.gather(rows, others))


_kept: weakref.WeakKeyDictionary[keras.optimizers.Optimizer, dict[Any, RowGradient]] = weakref.WeakKeyDictionary()


def row_gradient(optimizer: keras.optimizers.Optimizer, table: tf.Variable) -> RowGradient:
    """The gradient of a table, made at the first call; it stays as long as the optimizer."""
    of_optimizer = _kept.setdefault(optimizer, {})
    key = table.ref()
    if key not in of_optimizer:
        of_optimizer[key] = RowGradient(table)
    return of_optimizer[key]
