"""Gathers the rows of all replicas, with the gradient of one device: for losses and metrics, and for custom steps.

A compiled loss that couples the rows of a batch is computed on every replica from the rows of all of them; its gradient
with respect to the replica's own rows is summed over the replicas.

Of the summaries that a step writes with `tf.summary`, TensorFlow writes those of the first replica. A scalar is made
the mean over all of them, weighted by their rows.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_api, private_layers
from tfaccel.training.steps.all_reduce import mean_over_replicas
from tfaccel.training.steps.global_batch import (
    check_runs,
    current_share,
    global_losses,
    gradient_of_exchanged,
    gradient_weight,
    replica_share,
    rows_that_count,
)
from tfaccel.training.steps.overrides import instance_attributes

logger = logging.getLogger("tfaccel")

_OTHERS = ("audio", "histogram", "image", "text")
_MEANS = (
    "tf.summary.scalar in a step writes the mean over the %d replicas, weighted by their rows. Sum what is a sum over "
    "the rows with tfaccel.ops.sum_over_replicas first."
)
_OF_FIRST = "tf.summary.%s in a step writes what the first of %d replicas has: that of its own rows of a batch."
_said: set[str] = set()
# TensorFlow's collectives gather five dtypes. What holds the values of the others, or their bits.
_BY_BITS = {tf.uint64: tf.int64, tf.complex64: tf.float32, tf.complex128: tf.float64}
_CARRIERS = {
    **dict.fromkeys((tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16), tf.int32),
    tf.uint32: tf.int64,
    tf.bfloat16: tf.float32,
    **_BY_BITS,
}
_SUMS = (type(None), keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)
LOSS_GATHERED: weakref.WeakSet[keras.Model] = weakref.WeakSet()  # whose compiled loss takes the rows of all replicas


def all_gather_rows(rows: Any) -> tf.Tensor:
    """The rows of the global batch, for a loss that compares the examples of a batch with each other.

    With N replicas, each sees only its own rows of the global batch, so a contrastive loss would compare fewer pairs
    than on one device. With gathered rows, the loss and its gradient are those of one device. On one device, and
    outside of a training step, the rows are returned unchanged.

    Gather everything that the loss compares, including labels, and return the loss of either all rows or the replica's
    own rows. Rows that need no gradient (labels) may have any dtype. XLA stays off for a step that gathers.

    Args:
        rows: tensor of shape `(own_rows, ...)`: the replica's own rows, with one or more rows per example.

    Returns:
        Tensor of shape `(all_rows, ...)` with the rows of every replica, in the order of the global batch.

    Example:

    >>> import tensorflow as tf
    >>> from tfaccel.ops import all_gather_rows
    >>> def contrastive_loss(labels, embeddings):
    ...     labels, embeddings = all_gather_rows(labels), all_gather_rows(embeddings)
    ...     logits = tf.matmul(embeddings, embeddings, transpose_b=True)
    ...     same = tf.cast(labels[:, None] == labels[None, :], logits.dtype)
    ...     return tf.nn.softmax_cross_entropy_with_logits(same, logits)
    >>> all_gather_rows(tf.ones((2, 3))).shape
    TensorShape([2, 3])

    Reference: [A Simple Framework for Contrastive Learning](https://arxiv.org/abs/2002.05709), which gathers the
    embeddings of all devices.
    """
    own = tf.convert_to_tensor(rows)
    share, context = current_share(), tf.distribute.get_replica_context()
    if share is not None:
        share.gathers = True
        check_runs()
        own = rows_that_count(own)
    if context is None or context.num_replicas_in_sync == 1 or (share is not None and share.counting):
        return own
    return _gathered(own, context)


def gather_nest(values: Any) -> Any:
    """A nest whose tensors, and the Keras masks on them, have the rows of all replicas; scalars are unchanged."""

    def gather(value: Any) -> Any:
        if not (isinstance(value, tf.Tensor) and value.shape.rank):
            return value
        mask = private_api.keras_mask(value)
        rows = all_gather_rows(value)
        return rows if mask is None else private_api.with_mask(rows, all_gather_rows(mask))

    return keras.tree.map_structure(gather, values)


@contextlib.contextmanager
def losses_of_all(model: keras.Model) -> Iterator[None]:
    """`global_losses`, with activity regularizers over the rows of all replicas, unless they are sums over the rows."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(global_losses(model))
        for layer in private_api.all_layers(model):
            if type(layer.activity_regularizer) not in _SUMS:
                of_all = partial(_regularized, layer.activity_regularizer)
                stack.enter_context(instance_attributes(layer, {"activity_regularizer": of_all}))
        yield


def _regularized(regularizer: Callable[[tf.Tensor], tf.Tensor], output: tf.Tensor) -> tf.Tensor:
    """What a regularizer makes of all rows, so that Keras divides by all of them: it divides by the replica's rows."""
    if current_share() is None or not output.shape.rank:
        return regularizer(output)
    rows = all_gather_rows(output)
    total = tf.reduce_sum(regularizer(rows))
    return total * tf.cast(tf.shape(output)[0] / tf.shape(rows)[0], total.dtype)


def gather_states(value: tf.Tensor) -> tf.Tensor:
    """A value of each replica, along a new first axis; call it in a replica's step."""
    return _all_gather(value[None], tf.distribute.get_replica_context())


def _gathered(own: tf.Tensor, context: tf.distribute.ReplicaContext) -> tf.Tensor:
    if not own.dtype.is_floating:
        return _all_gather(own, context)
    reduce = partial(context.all_reduce, tf.distribute.ReduceOp.SUM)
    sizes = _all_gather(tf.shape(own)[:1], context)
    first = tf.reduce_sum(sizes[: context.replica_id_in_sync_group])

    @tf.custom_gradient
    def gather(own: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            total = gradient_of_exchanged(upstream, gradient_weight(), reduce)
            return total[first : first + tf.shape(own)[0]]

        return _all_gather(own, context), gradient

    return gather(own)


def _all_gather(value: tf.Tensor, context: tf.distribute.ReplicaContext) -> tf.Tensor:
    carrier = _CARRIERS.get(value.dtype, value.dtype)
    if value.dtype in _BY_BITS:
        rows = tf.bitcast(context.all_gather(tf.bitcast(value, carrier), axis=0), value.dtype)
    else:
        rows = tf.cast(context.all_gather(tf.cast(value, carrier), axis=0), value.dtype)
    rows.set_shape([None, *value.shape[1:]])  # a loss or metric may look at the other sizes
    return rows


@contextlib.contextmanager
def summaries_of_all(num_replicas: int) -> Iterator[None]:
    """While tracing several replicas: scalar summaries are means over them. Says once what is written."""
    written: dict[str, Callable[..., Any]] = {name: getattr(tf.summary, name) for name in ("scalar", *_OTHERS)}

    def writing(kind: str) -> Callable[..., Any]:
        def write(name: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
            share = current_share()
            if share is not None and share.counting:  # a pass before the step
                return tf.constant(False)
            is_mean = kind == "scalar"
            if share is not None and kind not in _said:
                _said.add(kind)
                logger.warning(*((_MEANS, num_replicas) if is_mean else (_OF_FIRST, kind, num_replicas)))
            return written[kind](name, _mean(data) if is_mean else data, *args, **kwargs)

        return write

    if num_replicas == 1:
        yield
        return
    with instance_attributes(tf.summary, {kind: writing(kind) for kind in written}):
        yield


def _mean(data: Any) -> Any:
    value = tf.convert_to_tensor(data)
    if current_share() is None or not value.dtype.is_floating:
        return data
    try:
        return mean_over_replicas(value)
    except RuntimeError as error:
        if "merge_call" not in str(error):
            raise
        return data  # within a condition, where replicas cannot wait for each other


def get_losses(model: keras.Model) -> list[Any]:
    """What a model was compiled with as losses, however nested: TensorFlow wraps tuples and dicts that it tracks."""
    return [one for one in tf.nest.flatten(getattr(model, "loss", None)) if one is not None]


def has_own_loss(model: keras.Model) -> bool:
    """Whether a model was compiled with a loss that is not one of Keras's."""
    losses = get_losses(model)
    return not all(isinstance(one, str) or keras.losses.get(one).__module__.startswith("keras.") for one in losses)


def gathered_loss(model: keras.Model) -> dict[str, Any]:
    """Attributes of a model, while a step is traced, that compute its compiled loss from all rows, if asked for."""
    if model not in LOSS_GATHERED:
        return {}

    def loss_of_all(loss: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        share = current_share()
        if share is None:
            return loss(y, y_pred, sample_weight)
        if share.counting:  # as on one device, it has no denominators to count
            return tf.zeros([])
        gathered = [gather_nest(value) for value in (y, y_pred, sample_weight)]
        with replica_share(None):  # what follows is a computation of one device
            return loss(*gathered)

    return private_layers.compiled_loss(model, loss_of_all)


def can_gather(data: Any) -> bool:
    """Whether the rows of a batch can be gathered: they are dense."""
    return all(isinstance(leaf, tf.Tensor) for leaf in keras.tree.flatten(data) if leaf is not None)
