"""The private API of Keras's losses: how they are reduced over a batch, and what tfaccel patches while tracing."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfaccel.tested_versions import private_part

patch_lock = threading.RLock()


@contextlib.contextmanager
def loss_reduction(
    reduce_fn: Callable[..., Any], update_mean_fn: Callable[..., Any], gradient_fn: Callable[..., Any]
) -> Iterator[None]:
    """While tracing: reduces every loss by `reduce_fn(original, values, sample_weight, mask, reduction, dtype)`.

    Keras reduces over the replica's rows and divides by the number of replicas, which is not the mean over the global
    batch if rows are uneven, masked or weighted. Likewise, `update_mean_fn(original, metric, values, sample_weight)`
    replaces `keras.metrics.Mean.update_state`, and `gradient_fn(original, tape, target, sources, ...)` replaces
    `tf.GradientTape.gradient`. Each receives the original function first.
    """
    from keras.src.losses import loss as loss_module

    private_part(loss_module, "scale_loss_for_distribution")
    private_part(loss_module, "unscale_loss_for_distribution")
    original_reduce = private_part(loss_module, "reduce_weighted_values")
    original_update = keras.metrics.Mean.update_state
    original_gradient = tf.GradientTape.gradient

    def reduce(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        return reduce_fn(original_reduce, values, sample_weight, mask, reduction, dtype)

    def update(self: keras.metrics.Mean, values: Any, sample_weight: Any = None) -> Any:
        return update_mean_fn(original_update, self, values, sample_weight)

    patches = {
        "reduce_weighted_values": reduce,
        "scale_loss_for_distribution": lambda value: value,
        "unscale_loss_for_distribution": lambda value: value,
    }
    with patch_lock:
        saved = {name: getattr(loss_module, name) for name in patches}
        try:
            for name, value in patches.items():
                setattr(loss_module, name, value)
            keras.metrics.Mean.update_state = update
            tf.GradientTape.gradient = functools.partialmethod(_calls, gradient_fn, original_gradient)
            yield
        finally:
            for name, value in saved.items():
                setattr(loss_module, name, value)
            keras.metrics.Mean.update_state = original_update
            tf.GradientTape.gradient = original_gradient


def _calls(tape: tf.GradientTape, function: Callable[..., Any], original: Any, *args: Any, **kwargs: Any) -> Any:
    return function(original, tape, *args, **kwargs)


@contextlib.contextmanager
def merge_calls(wait: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
    """While tracing several replicas: calls `wait(merge)`, which calls `merge`, where a replica waits for all."""
    original = tf.distribute.ReplicaContext.merge_call

    def merge_call(context: tf.distribute.ReplicaContext, *args: Any, **kwargs: Any) -> Any:
        return wait(lambda: original(context, *args, **kwargs))

    with patch_lock:
        tf.distribute.ReplicaContext.merge_call = merge_call
        try:
            yield
        finally:
            tf.distribute.ReplicaContext.merge_call = original


def added_loss_reduction(model: keras.Model, sum_fn: Callable[..., Any]) -> dict[str, Any]:
    """Attributes that reduce each loss added by a layer of the model to a scalar by `sum_fn(original, loss)`."""
    name = "_aggregate_additional_loss"
    return {name: functools.partial(sum_fn, private_part(model, name))}


def merge_mask(sample_weight: Any, mask: Any, *, dtype: Any, values: Any) -> Any:
    """Weights and mask merged as Keras merges them for a sum, with the rank of `values` if possible."""
    from keras.src.losses import loss as loss_module

    merged = private_part(loss_module, "apply_mask")(sample_weight, mask, dtype=dtype, reduction="sum")
    return private_part(loss_module, "squeeze_or_expand_to_same_rank")(values, merged)[1]
