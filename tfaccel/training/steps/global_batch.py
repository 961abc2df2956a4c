"""Losses over the global batch: N replicas give the loss and the gradients that one device gives.

Keras averages a loss over the rows of one replica. Here the loss of a replica is weighted by its share of the rows
(`row_weight`, which sums to 1 over the replicas), so that the sum of the replicas' weighted gradients is the gradient
of the mean over the global batch. With `L_r` the loss that Keras code sees on replica `r` and `a_r` its row weight,

    loss = sum_r a_r * L_r

For a plain mean `L_r` is the replica's own mean. For a sum it is the replica's sum divided by `a_r`. For a mean over
masked or weighted examples it is the replica's weighted sum, divided by the denominator over *all* replicas and by
`a_r`; that denominator comes from an earlier pass (`counting`), or, outside XLA, from an all-reduce.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_layers
from tfaccel.training.private.private_tensorflow import functions_inlined
from tfaccel.training.steps.gradients import scaled
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.tracing import depends_on, own_tensors

# Each replica is traced in a separate thread, so the current share is thread-local.
_current = threading.local()
# Models to whose own code the values of losses with `reduction=None` are passed as they are. What a step makes of them
# is unknown: their sum needs values that are divided by the replica's fraction of the rows; their mean, or a gradient
# of all of them, needs the values as they are.
VALUES_KEPT: weakref.WeakSet[keras.Model] = weakref.WeakSet()


@dataclass
class Share:
    """A replica's share of the global batch, while its step is traced.

    Attributes:
        row_weight: the replica's fraction of the rows of the global batch, a float or a float32 scalar.
        denominators: the global denominators of the losses that need one, in the order of the calls; or None.
        counting: collect the replica's own denominators instead of dividing by global ones.
        counted: the denominators collected so far.
        gradients: the gradients passed to the replica's optimizer, if they are applied later.
        data: the replica's rows, as passed to the step.
        may_gather: whether the step can gather rows over the replicas: all of them run it, outside of XLA.
        weighs_gradients: whether the gradients, instead of the loss, are weighted by the rows.
        weight_of_sum: `gradient_weight` in the backward pass of values by row, whose gradient is that of their sum.
        gathers: whether the step gathers rows over the replicas.
        bad: numbers above 0 for losses and gradients that are not finite, if batches are left out.
        scaled: values of losses that are not reduced, divided by the replica's fraction of the rows.
        keeps_values: whether the values of a loss that is not reduced are left as they are; see `VALUES_KEPT`.
        metric_states: states of metrics before the step, by the ids of their variables.
        results: the results that the step has asked metrics for, each with its metric.
    """

    row_weight: Any
    denominators: tf.Tensor | None = None
    counting: bool = False
    counted: list[tf.Tensor] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    data: Any = None
    may_gather: bool = True
    weighs_gradients: bool = False
    weight_of_sum: Any = None
    gathers: bool = False
    bad: list[tf.Tensor] = field(default_factory=list)
    scaled: list[Any] = field(default_factory=list)
    keeps_values: bool = False
    metric_states: dict[int, tf.Tensor] = field(default_factory=dict)
    results: list[tuple[Any, keras.metrics.Metric]] = field(default_factory=list)

    @property
    def numbers_of_rows(self) -> set[int | None]:
        """Numbers of rows of the replica's data, as far as they are known while tracing."""
        return {leaf.shape[0] for leaf in keras.tree.flatten(self.data) if leaf is not None and leaf.shape.rank}


class NeedsEveryReplica(Exception):
    """While tracing: the step gathers rows over the replicas, but some do not run it, or XLA compiles it."""


def check_runs() -> None:
    """Raises NeedsEveryReplica where the replicas being traced cannot wait for each other."""
    share = current_share()
    if share is not None and not share.may_gather:
        raise NeedsEveryReplica


@contextlib.contextmanager
def replica_share(share: Share | None) -> Iterator[Share | None]:
    """While tracing a replica's step: losses are reduced over its share of the global batch (None: one device)."""
    previous = getattr(_current, "share", None)
    _current.share = share
    try:
        yield share
    finally:
        _current.share = previous


def current_share() -> Share | None:
    """The share of the replica being traced in this thread, or None."""
    return getattr(_current, "share", None)


@contextlib.contextmanager
def global_losses(model: keras.Model) -> Iterator[None]:
    """While tracing a step of several replicas: losses and loss trackers are computed over the global batch.

    Scalar losses added by layers, including activity regularizers, are means over the rows in Keras, so the row weight
    is right for them. Weight regularizers are equal on all replicas, and the row weights sum to 1. If a layer adds one
    loss per example, Keras sums them, and so does `sum_of_added`.
    """
    added = private_layers.added_loss_reduction(model, sum_of_added)
    update_mean = functools.partial(_update_mean, private_layers.loss_trackers(model))
    reduction = private_layers.loss_reduction(_reduce, update_mean, _gradient)
    inlined = functions_inlined(lambda: current_share() is not None)
    with reduction, instance_attributes(model, added), own_tensors(model, check_runs), inlined:
        yield


def _reduce(
    original: Callable[..., Any], values: Any, sample_weight: Any, mask: Any, reduction: Any, dtype: Any
) -> Any:
    share = current_share()
    is_kept = share is not None and share.keeps_values and reduction in (None, "none") and len(values.shape) > 0
    if is_kept:
        return original(values, sample_weight, mask, reduction, dtype)
    if share is None or len(values.shape) == 0:
        return original(values, sample_weight, mask, reduction, dtype)
    if reduction in (None, "none", "sum"):
        total = original(values, sample_weight, mask, reduction, dtype)
        if share.gathers and not share.counting:
            return tf.where(_has_own_rows(values, share), _of_all_rows(total, share), total)
        total = _of_all_rows(total, share)
        share.scaled += [total] if len(total.shape) else []
        return total
    weighted = reduction == "mean_with_sample_weight" and sample_weight is not None
    if mask is None and not weighted:
        return original(values, sample_weight, mask, reduction, dtype)
    total = original(values, sample_weight, mask, "sum", dtype)
    own = _own_denominator(values, sample_weight, mask, weighted or reduction == "mean_with_sample_weight", total.dtype)
    denominator = _global_denominator(share, own)
    if denominator is None:
        return total
    return tf.math.divide_no_nan(total, denominator * tf.cast(share.row_weight, total.dtype))


def sum_of_added(original: Callable[[Any], Any], loss: Any) -> Any:
    """A loss added by a layer, as a scalar: Keras sums anything else.

    A loss with one or more values per example is summed over the global batch.
    """
    share, total = current_share(), original(loss)
    if share is None or not len(loss.shape):
        return total
    return _of_all_rows(total, share) if _is_by_row(loss, share) else total


def _is_by_row(values: Any, share: Share) -> bool:
    """Whether a tensor has one or more values for each row of the replica."""
    return (values.shape[0] is None or values.shape[0] in share.numbers_of_rows) and depends_on(values, share.data)


def _has_own_rows(values: Any, share: Share) -> tf.Tensor:
    """Whether values in a step that gathers rows are those of the replica's; else their sum already counts once."""
    return tf.equal(tf.shape(values)[0], tf.shape(keras.tree.flatten(share.data)[0])[0])


def _gradient(
    original: Callable[..., Any], tape: tf.GradientTape, target: Any, sources: Any, *args: Any, **kwargs: Any
) -> Any:
    """Makes the gradient of per-row values the gradient of their sum over the global batch.

    It will be weighted by the replica's fraction of the rows, like the gradient of a mean. Gradients with respect to
    anything but variables (the inputs, for a gradient penalty) are unchanged.
    """
    share, targets = current_share(), keras.tree.flatten(target)
    is_sum = bool(targets) and all(isinstance(one, tf.Tensor) and one.shape.rank != 0 for one in targets)
    if share is None or not share.weighs_gradients or not is_sum or not all(_is_by_row(one, share) for one in targets):
        return original(tape, target, sources, *args, **kwargs)
    share.weight_of_sum = tf.sign(tf.cast(share.row_weight, tf.float32))
    if share.gathers:
        share.weight_of_sum = tf.where(_has_own_rows(targets[0], share), share.weight_of_sum, share.row_weight)
    factor = tf.math.divide_no_nan(share.weight_of_sum, share.row_weight)
    try:
        gradients = original(tape, target, sources, *args, **kwargs)
    finally:
        share.weight_of_sum = None

    def of_sum(source: Any, gradient: Any) -> Any:
        is_variable = isinstance(source, tf.Variable | keras.Variable)
        return scaled(gradient, factor) if is_variable and gradient is not None else gradient

    return keras.tree.map_structure(of_sum, sources, gradients)


def _of_all_rows(total: Any, share: Share) -> tf.Tensor:
    """A sum over the replica's rows, divided by its fraction of the rows, which it is later weighted by; 0 if empty."""
    return tf.math.divide_no_nan(total, tf.cast(share.row_weight, total.dtype))


def _own_denominator(values: Any, sample_weight: Any, mask: Any, by_weight: bool, dtype: Any) -> tf.Tensor:
    """This replica's part of the denominator: its sum of weights, or its number of valid elements."""
    if by_weight:
        merged = private_layers.merge_mask(sample_weight, mask, dtype=dtype, values=values)
        return tf.reduce_sum(tf.cast(merged, dtype))
    mask = tf.cast(mask, dtype)
    elements_per_mask = tf.math.divide_no_nan(tf.cast(tf.size(values), dtype), tf.cast(tf.size(mask), dtype))
    return tf.reduce_sum(mask) * elements_per_mask


def _global_denominator(share: Share, own: tf.Tensor) -> tf.Tensor | None:
    own = tf.stop_gradient(tf.cast(own, tf.float32))
    share.counted.append(own)
    if share.counting:
        return None
    if share.denominators is not None:
        return share.denominators[len(share.counted) - 1]
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return own
    return context.all_reduce(tf.distribute.ReduceOp.SUM, zero_if_borrowed(own, share.row_weight))


def _update_mean(
    loss_trackers: list[keras.metrics.Mean],
    original: Callable[..., Any],
    metric: keras.metrics.Mean,
    values: Any,
    sample_weight: Any,
) -> Any:
    """Weights a replica by its fraction of the rows in a loss tracker that is updated with one scalar per step.

    The scalars of all replicas then count as one value, as on one device, which matters if values by row are added too.
    The values of a loss that is not reduced (`reduction=None`) were divided by that fraction; Keras logs their mean.
    """
    share = current_share()
    if share is None:
        return original(metric, values, sample_weight)
    is_scaled, parts = any(values is one for one in share.scaled), keras.tree.flatten(values)
    is_of_rows = len(parts) > 1 and len(parts) in share.numbers_of_rows
    values, weight = tf.convert_to_tensor(values), tf.cast(share.row_weight, tf.float32)
    if not (is_of_rows or any(tf.convert_to_tensor(one).shape.rank for one in parts)):  # one scalar, or a list of them
        return original(metric, values, weight if sample_weight is None else sample_weight)
    is_tracked = not share.keeps_values and any(metric is tracker for tracker in loss_trackers)
    if is_tracked or is_scaled:
        values = values * tf.cast(weight, values.dtype)
    return original(metric, values, sample_weight)


def rows_that_count(values: tf.Tensor) -> tf.Tensor:
    """The replica's rows; none if its only row is borrowed."""
    share = current_share()
    if share is None:
        return values
    return values[: tf.where(share.row_weight > 0, tf.shape(values)[0], 0)]


def zero_if_borrowed(values: tf.Tensor, row_weight: Any) -> tf.Tensor:
    """What a replica computed from its rows; zeros if its only row is borrowed, and so has the weight 0."""
    return tf.where(row_weight > 0, values, tf.zeros_like(values))


def gradient_weight() -> Any:
    """The factor applied to this replica's gradients after the backward pass: its fraction of the rows, or 1.

    Call it within the backward pass, in which the gradient of a sum over the rows has the factor 1.
    """
    share = current_share()
    if share is None or not share.weighs_gradients:
        return 1.0
    return share.row_weight if share.weight_of_sum is None else share.weight_of_sum


def gradient_of_exchanged(upstream: tf.Tensor, weight: Any, sum_over_replicas: Callable[[Any], Any]) -> tf.Tensor:
    """The gradient with respect to a value that a replica sent to all: the sum of their gradients, as weighted later.

    Args:
        upstream: this replica's gradient with respect to the values it received.
        weight: its `gradient_weight`.
        sum_over_replicas: sums a tensor over the replicas.
    """
    factor = tf.cast(weight, upstream.dtype)
    return tf.math.divide_no_nan(sum_over_replicas(upstream * factor), factor)


def weighted_by_rows(logs: Any) -> Any:
    """Logs of one replica's step times its fraction of the rows, so that their sum over the replicas is their mean.

    Integers, such as counters, are unchanged. Logs of a borrowed row do not count.
    """
    share = current_share()
    if share is None or not logs:
        return logs

    def weighted(value: Any) -> tf.Tensor:
        value = tf.convert_to_tensor(value)
        if not value.dtype.is_floating:
            return value
        return zero_if_borrowed(value * tf.cast(share.row_weight, value.dtype), share.row_weight)

    return keras.tree.map_structure(weighted, logs)
