"""Finds whether a tensor of a traced step depends on the batch, by walking the graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf


def depends_on(tensor: Any, batch: Any) -> bool:
    """Whether a tensor is computed from the values of a batch.

    Args:
        tensor: a tensor of the graph being traced.
        batch: a nest of tensors of the same graph.

    Returns:
        True if it is; always True in eager mode, which has no graph.
    """
    if tf.executing_eagerly():
        return True
    return any(name is _BATCH for name in _sources(tensor, batch))


def is_same_on_all_replicas(tensor: Any, batch: Any) -> bool:
    """Whether a tensor depends only on constants and on dimensions of the batch other than its number of rows.

    False if it depends on a variable: those of seed generators differ between replicas.
    """
    return not tf.executing_eagerly() and next(_sources(tensor, batch), None) is None


_BATCH, _STATE = "batch", "state"


def _sources(tensor: Any, batch: Any) -> Iterator[str]:
    """Walks the graph backwards from a tensor; yields `_BATCH` or `_STATE` for each source but constants."""
    of_batch = {_key(leaf) for leaf in tf.nest.flatten(batch, expand_composites=True) if leaf is not None}
    seen: set[Any] = set()
    stack = list(tf.nest.flatten(tensor, expand_composites=True))
    while stack:
        one = stack.pop()
        if _key(one) in seen:
            continue
        seen.add(_key(one))
        if _key(one) in of_batch:
            yield _BATCH
        elif _is_eager(one):
            if one.dtype == tf.resource:
                yield _STATE
        elif one.op.type == "Placeholder":
            captured = [outer for outer, inner in one.graph.captures if inner is one]
            if not captured:
                yield _STATE
            stack += captured
        elif not _is_size_other_than_rows(one):
            if one.op.op_def.is_stateful:
                yield _STATE
            stack += one.op.inputs


def _key(tensor: Any) -> Any:
    return id(tensor) if _is_eager(tensor) else (id(tensor.graph), tensor.name)


def _is_eager(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and not tf.is_symbolic_tensor(value)


def _is_size_other_than_rows(tensor: tf.Tensor) -> bool:
    """Whether a tensor is `tf.shape(x)[axis]` with `axis > 0`."""
    operation = tensor.op
    if operation.type != "StridedSlice" or operation.inputs[0].op.type != "Shape":
        return False
    begin = tf.get_static_value(operation.inputs[1])
    return begin is not None and begin.size == 1 and int(begin[0]) > 0
