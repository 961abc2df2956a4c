"""The private API that reduces Keras's losses over a batch, and what tfaccel patches while tracing."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfaccel.tested_versions import private_part
from tfaccel.training.private import private_api

patch_lock = threading.RLock()


@contextlib.contextmanager
def patched(owner: Any, **parts: Any) -> Iterator[None]:
    """Within the block, a class or module of another package has other parts: for one thread at a time that patches."""
    with patch_lock:
        before = {name: getattr(owner, name) for name in parts}
        try:
            for name, value in parts.items():
                setattr(owner, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(owner, name, value)


@contextlib.contextmanager
def loss_reduction(
    reduce_fn: Callable[..., Any], update_mean_fn: Callable[..., Any], gradient_fn: Callable[..., Any]
) -> Iterator[None]:
    """While tracing: reduces each loss with `reduce_fn(original, values, sample_weight, mask, reduction, dtype)`.

    Keras reduces over the replica's rows and divides by the number of replicas, which is not the mean over the global
    batch if rows are masked, weighted, or split unevenly. Likewise, `keras.metrics.Mean.update_state` is replaced by
    `update_mean_fn(original, metric, values, sample_weight)`, and `tf.GradientTape.gradient` by
    `gradient_fn(original, tape, target, sources, ...)`. `original` is the replaced function.
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
    gradient = functools.partialmethod(_calls, gradient_fn, original_gradient)
    with (
        patched(loss_module, **patches),
        patched(keras.metrics.Mean, update_state=update),
        patched(tf.GradientTape, gradient=gradient),
    ):
        yield


@contextlib.contextmanager
def losses_of_one_device() -> Iterator[None]:
    """While tracing in the scope of a strategy: Keras does not divide losses by the number of replicas."""
    from keras.src.losses import loss as loss_module

    names = ("scale_loss_for_distribution", "unscale_loss_for_distribution")
    for name in names:
        private_part(loss_module, name)
    with patched(loss_module, **dict.fromkeys(names, lambda value: value)):
        yield


def _calls(tape: tf.GradientTape, function: Callable[..., Any], original: Any, *args: Any, **kwargs: Any) -> Any:
    return function(original, tape, *args, **kwargs)


@contextlib.contextmanager
def merge_calls(wait: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
    """While tracing several replicas: `ReplicaContext.merge_call` calls `wait(merge)`, which must call `merge`."""
    original = tf.distribute.ReplicaContext.merge_call

    def merge_call(context: tf.distribute.ReplicaContext, *args: Any, **kwargs: Any) -> Any:
        return wait(lambda: original(context, *args, **kwargs))

    with patched(tf.distribute.ReplicaContext, merge_call=merge_call):
        yield


def added_loss_reduction(model: keras.Model, sum_fn: Callable[..., Any]) -> dict[str, Any]:
    """Attributes that make a model reduce each loss added by a layer to a scalar with `sum_fn(original, loss)`."""
    name = "_aggregate_additional_loss"
    return {name: functools.partial(sum_fn, private_part(model, name))}


class _ReplacedLoss:
    """A model's compiled loss, called in another way."""

    def __init__(self, loss: Any, call: Callable[..., Any]) -> None:
        self._loss, self._call = loss, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._loss, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loss, name)


def compiled_loss(model: keras.Model, call: Callable[..., Any]) -> dict[str, Any]:
    """Attributes that make a model compute its compiled loss by `call(loss, y, y_pred, sample_weight)`."""
    name = "_compile_loss"
    loss = private_part(model, name)
    return {} if loss is None else {name: _ReplacedLoss(loss, call)}


def loss_trackers(model: keras.Model) -> list[keras.metrics.Mean]:
    """The metrics in which Keras logs the loss of a compiled model, and that of each of its outputs."""
    compiled = private_part(model, "_compile_loss")
    return [private_api.loss_tracker(model), *(compiled.metrics if compiled is not None else ())]


def merge_mask(sample_weight: Any, mask: Any, *, dtype: Any, values: Any) -> Any:
    """Merges weights and mask as Keras does for a sum; the result has the rank of `values` if possible."""
    from keras.src.losses import loss as loss_module

    merged = private_part(loss_module, "apply_mask")(sample_weight, mask, dtype=dtype, reduction="sum")
    return private_part(loss_module, "squeeze_or_expand_to_same_rank")(values, merged)[1]
