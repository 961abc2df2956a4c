"""The all-reduce: sums of gradients and other values over all replicas, after their steps or inside of them.

`all_reduce` sums per-replica values between two parts of a step, and is what training on several replicas waits for.
Inside a step, `sum_over_replicas` and `mean_over_replicas` have the gradient of one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.steps.global_batch import (
    check_runs,
    current_share,
    gradient_of_exchanged,
    gradient_weight,
    zero_if_borrowed,
)
from tfaccel.training.steps.replicas import Replicas


def all_reduce(replicas: Replicas, values: list[Any], *, pack_bytes: int = 0) -> list[Any]:
    """Sums each per-replica value over all replicas of all workers, in one packed reduction.

    Must be called in the strategy's cross-replica context.

    Args:
        values: dense tensors and `IndexedSlices`.
        pack_bytes: size of the packs in which they are reduced; 0 leaves it to TensorFlow.
    """
    strategy = replicas.strategy
    local = [strategy.experimental_local_results(value) for value in values]
    # TensorFlow's collectives require the same number of slices in each step of a graph call.
    joined = [replicas.num_workers == 1 and isinstance(parts[0], tf.IndexedSlices) for parts in local]
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=pack_bytes)
    pairs = [(value, value) for value, join in zip(values, joined, strict=True) if not join]

    def reduce() -> Any:
        return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs, options=options)

    reduced = iter((replicas.timed(local, reduce) if pairs else None) or ())
    return [_joined_slices(parts) if join else next(reduced) for parts, join in zip(local, joined, strict=True)]


def _joined_slices(parts: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
    """The sum of sparse gradients, as the concatenation of their slices."""
    values = tf.concat([part.values for part in parts], axis=0)
    return tf.IndexedSlices(values, tf.concat([part.indices for part in parts], axis=0), parts[0].dense_shape)


def sum_over_replicas(values: Any) -> Any:
    """The sum over all replicas of what each has computed from its own rows.

    With N replicas, each sees only its own rows of the global batch. What a step counts or sums over the rows, such as
    the number of rows of a class, becomes the sum over the global batch: the same on all replicas, and what one device
    has. A weight that is assigned such a sum therefore stays the same on all replicas. On one device, and outside of a
    training step, the values are returned unchanged. XLA stays off for a step that sums.

    Args:
        values: a tensor of any shape and a floating or integer dtype, or a nest of them: sums over the replica's rows.
            `IndexedSlices` become dense. None stays None.

    Returns:
        The same nest with the sums over all replicas. The gradient passes through.

    Example:

    >>> import tensorflow as tf
    >>> from tfaccel.ops import sum_over_replicas
    >>> labels = tf.constant([0, 2, 2])
    >>> sum_over_replicas(tf.reduce_sum(tf.one_hot(labels, 3), axis=0))
    <tf.Tensor: shape=(3,), dtype=float32, numpy=array([1., 0., 2.], dtype=float32)>

    Reference: [tf.distribute.ReplicaContext.all_reduce](
    https://www.tensorflow.org/api_docs/python/tf/distribute/ReplicaContext#all_reduce)
    """
    return keras.tree.map_structure(partial(_summed, weigh=None), values)


def mean_over_replicas(values: Any) -> Any:
    """The mean over all replicas, weighted by their rows, of what each has computed as a mean over its own rows.

    A replica's gradients are those of the mean loss over its own rows; this makes them those of the global batch. A
    step can then clip them by their norm, or move the weights by them, as on one device. See `sum_over_replicas`.

    Args:
        values: a tensor of a floating dtype, or a nest of them, such as a list of gradients. `IndexedSlices` become
            dense. None stays None.

    Returns:
        The same nest with the means over the global batch.

    Example:

    >>> import tensorflow as tf
    >>> from tfaccel.ops import mean_over_replicas
    >>> gradients, _ = tf.clip_by_global_norm(mean_over_replicas([tf.constant([3.0, 4.0])]), 1.0)
    >>> gradients[0]
    <tf.Tensor: shape=(2,), dtype=float32, numpy=array([0.6, 0.8], dtype=float32)>
    """

    def weighed(value: tf.Tensor) -> tf.Tensor:
        share = current_share()
        return value if share is None else value * tf.cast(share.row_weight, value.dtype)

    return keras.tree.map_structure(partial(_summed, weigh=weighed), values)


def _summed(value: Any, *, weigh: Callable[[tf.Tensor], tf.Tensor] | None) -> Any:
    if value is None:
        return None
    own, share, context = tf.convert_to_tensor(value), current_share(), tf.distribute.get_replica_context()
    check_runs()
    if context is None or context.num_replicas_in_sync == 1 or (share is not None and share.counting):
        return own
    reduce = partial(context.all_reduce, tf.distribute.ReduceOp.SUM)
    if not own.dtype.is_floating:
        return reduce(own if share is None else zero_if_borrowed(own, share.row_weight))

    @tf.custom_gradient
    def total(own: tf.Tensor) -> Any:
        return reduce(own), lambda upstream: gradient_of_exchanged(upstream, gradient_weight(), reduce)

    own = own if weigh is None else weigh(own)
    return total(own if share is None else zero_if_borrowed(own, share.row_weight))
