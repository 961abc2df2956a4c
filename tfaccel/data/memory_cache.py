"""Examples that are decoded when they are first read, and then kept in memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from tfaccel.data.epochs import Reader


class MemoryCache:
    """Keeps the examples of a function that reads them by row number in host memory.

    An example is decoded when it is first read, so nothing delays the first batch of an epoch; later reads copy it.
    Calls may run in parallel; two that read the same new example at once both decode it.

    Args:
        read: `read(rows)` takes row numbers (an int64 tensor of shape (num_rows,)) and returns a nest of tensors with
            as many rows. It is traced.
        specs: the `tf.TensorSpec` of one example, in the nest that `read` returns.
        num_examples: total number of rows.

    Example:
        >>> cache = MemoryCache(lambda rows: rows / 2, specs=tf.TensorSpec([], tf.float64), num_examples=9)
        >>> cache.read(tf.constant([3, 8], tf.int64)).numpy().tolist()
        [1.5, 4.0]
        >>> cache.num_kept
        2
    """

    def __init__(self, read: Reader, *, specs: Any, num_examples: int) -> None:
        self._decode = read
        with ThreadPoolExecutor(1) as pool:  # strategies' scopes hold in their thread only, and these are not mirrored
            self._is_kept, self._examples = pool.submit(_variables, specs, num_examples).result()

    @property
    def num_kept(self) -> int:
        """The number of examples in memory."""
        return int(tf.math.count_nonzero(self._is_kept))

    @tf.autograph.experimental.do_not_convert
    def read(self, rows: tf.Tensor) -> Any:
        """The examples with these row numbers. It can be traced."""
        missing = tf.boolean_mask(rows, ~tf.gather(self._is_kept, rows))
        done = tf.cond(tf.size(missing) > 0, lambda: self._keep(missing), lambda: missing)
        with tf.control_dependencies([done]):
            return tf.nest.map_structure(lambda variable: tf.gather(variable, rows), self._examples)

    def _keep(self, rows: tf.Tensor) -> tf.Tensor:
        """Decodes examples and keeps them; returns their rows."""
        parts = zip(tf.nest.flatten(self._examples), tf.nest.flatten(self._decode(rows)), strict=True)
        written = [_write(variable, rows, part) for variable, part in parts]
        with tf.control_dependencies(written):  # marked only when all parts of an example are there
            marked = _write(self._is_kept, rows, tf.ones_like(rows, tf.bool))
        with tf.control_dependencies([marked]):
            return tf.identity(rows)


def _variables(specs: Any, num_examples: int) -> tuple[tf.Variable, Any]:
    def new(spec: tf.TensorSpec) -> tf.Variable:
        empty = tf.raw_ops.Empty(shape=[num_examples, *spec.shape], dtype=spec.dtype)  # the memory is taken as it fills
        return tf.Variable(empty, trainable=False)

    with tf.device("/CPU:0"):
        return tf.Variable(tf.zeros([num_examples], tf.bool), trainable=False), tf.nest.map_structure(new, specs)


def _write(variable: tf.Variable, rows: tf.Tensor, values: tf.Tensor) -> tf.Operation | None:
    """Writes rows of a variable; returns the operation in a graph."""
    operation: tf.Operation | None = tf.raw_ops.ResourceScatterUpdate(
        resource=variable.handle, indices=rows, updates=values
    )
    return operation
