"""The rows of a batch, a nest of dense, ragged and sparse tensors: some of them, and in another order."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


def some_rows(batch: Any, first: int, num_rows: int) -> Any:
    """Rows of a batch of dense, ragged or sparse tensors, from the first one given."""

    def of(leaf: Any) -> Any:
        if leaf is None or not leaf.shape.rank:
            return leaf
        if isinstance(leaf, tf.SparseTensor):
            size = [num_rows, *leaf.dense_shape.numpy()[1:]]
            return tf.sparse.slice(leaf, [first] + [0] * (leaf.shape.rank - 1), size)
        return leaf[first : first + num_rows]

    return keras.tree.map_structure(of, batch)


def get_specs(data: Any, known: Any = None) -> Any:
    """The specs of a batch.

    Args:
        data: the batch.
        known: the specs of all batches, whose unknown sizes stay unknown; None takes the sizes of this one.
    """
    leaves, others = tf.nest.flatten(data), tf.nest.flatten(known)
    if len(others) != len(leaves):
        others = [None] * len(leaves)
    return tf.nest.pack_sequence_as(data, list(map(_get_spec, leaves, others)))


def _get_spec(leaf: Any, known: Any) -> Any:
    spec = None if leaf is None else tf.type_spec_from_value(leaf)
    if spec is None or not spec.shape.rank or not isinstance(known, tf.TypeSpec) or known.shape.rank != spec.shape.rank:
        return spec
    shape = [None if of_all is None else size for size, of_all in zip(spec.shape, known.shape, strict=True)]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)


def reversed_rows(data: Any) -> Any:
    """A batch in reverse order."""

    def of(leaf: Any) -> Any:
        if isinstance(leaf, tf.SparseTensor):
            rows, *others = tf.unstack(leaf.indices, axis=1)
            indices = tf.stack([leaf.dense_shape[0] - 1 - rows, *others], axis=1)
            return tf.sparse.reorder(tf.SparseTensor(indices, leaf.values, leaf.dense_shape))
        if isinstance(leaf, tf.RaggedTensor):
            return tf.gather(leaf, tf.range(leaf.nrows() - 1, -1, -1))
        return tf.reverse(leaf, [0]) if isinstance(leaf, tf.Tensor) and leaf.shape.rank else leaf

    return keras.tree.map_structure(of, data)


def every_nth_row(data: Any, n: int) -> Any:
    """Every n-th row of a batch, or as many of the first ones where some are sparse."""
    has_sparse = any(isinstance(leaf, tf.SparseTensor) for leaf in keras.tree.flatten(data))
    if has_sparse:
        return some_rows(data, 0, max(1, get_num_rows(data) // n))
    return keras.tree.map_structure(lambda leaf: leaf[::n] if leaf is not None and leaf.shape.rank else leaf, data)


def get_num_rows(data: Any) -> int:
    """The rows of a batch."""
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None and leaf.shape.rank]
    return int(leaves[0].shape[0]) if leaves else 0
