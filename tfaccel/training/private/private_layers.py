"""The private API of Keras's losses and layers, and what tfaccel patches of them while tracing.

No public API selects the rows that losses and batch statistics are computed over. Keras's `synchronized=True` ignores
masks, and computes the variance as a difference of squares, which loses precision if the mean is large.

`Layer.__call__` sets a state around a layer's `call`, and takes it back afterwards. There is no public way to have it
in the backward pass too, which runs a `call` again.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import keras
import tensorflow as tf

from tfaccel.tested_versions import private_part
from tfaccel.training.private import private_api
from tfaccel.training.steps.overrides import attributes_of_each, keeps_methods

patch_lock = threading.RLock()

_COMPUTE = "_compute_attention"
_CONTEXT = "current_call_ctx"
_GATES_OF_LSTM = "_compute_carry_and_output_fused"


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
def calibrating(layers: Iterable[keras.layers.Layer]) -> Iterator[None]:
    """While Keras calibrates GPTQ or AWQ: layers show it their inputs.

    Keras 3.15 observes `call`, but a layer that is to be quantized runs `quantized_call`: both methods would calibrate
    with nothing, and round to the nearest.
    """

    def observed(layer: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        is_done = layer.is_gptq_calibrated if layer.quantization_mode == "gptq" else layer.is_awq_calibrated
        return (original if is_done else layer.call)(*args, **kwargs)

    calls = ((layer, functools.partial(observed, layer, private_part(layer, "quantized_call"))) for layer in layers)
    with attributes_of_each((layer, {"quantized_call": call}) for layer, call in calls):
        yield


@contextlib.contextmanager
def saving_zero_points(layers: Iterable[keras.layers.Layer]) -> Iterator[None]:
    """While a model is saved: layers quantized by GPTQ or AWQ save their zero points, which Keras 3.15 leaves out.

    Later versions save them: https://github.com/keras-team/keras/pull/23321.
    """
    name = "_get_kernel_with_merged_lora"
    quantized = [layer for layer in layers if getattr(layer, "quantization_mode", None) in ("gptq", "awq")]
    for layer in quantized:
        private_part(layer, name)
    values = ((layer, (None, None, layer.kernel_zero)) for layer in quantized)
    with attributes_of_each((layer, {name: lambda found=found: found}) for layer, found in values):
        yield


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


def losses_of_one_device() -> contextlib.AbstractContextManager[None]:
    """While tracing in the scope of a strategy: Keras does not divide losses by the number of replicas."""
    from keras.src.losses import loss as loss_module

    names = ("scale_loss_for_distribution", "unscale_loss_for_distribution")
    for name in names:
        private_part(loss_module, name)
    return patched(loss_module, **dict.fromkeys(names, lambda value: value))


def _calls(tape: tf.GradientTape, function: Callable[..., Any], original: Any, *args: Any, **kwargs: Any) -> Any:
    return function(original, tape, *args, **kwargs)


def merge_calls(wait: Callable[[Callable[[], Any]], Any]) -> contextlib.AbstractContextManager[None]:
    """While tracing several replicas: `ReplicaContext.merge_call` calls `wait(merge)`, which must call `merge`."""
    original = tf.distribute.ReplicaContext.merge_call

    def merge_call(context: tf.distribute.ReplicaContext, *args: Any, **kwargs: Any) -> Any:
        return wait(lambda: original(context, *args, **kwargs))

    return patched(tf.distribute.ReplicaContext, merge_call=merge_call)


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


def function_of_metric(metric: keras.metrics.Metric) -> Any:
    """The function whose values a metric averages, or None."""
    wraps = isinstance(metric, keras.metrics.MeanMetricWrapper)
    return private_part(metric, "_fn") if wraps else None


@contextlib.contextmanager
def functions_of_logits(row_function: Callable[..., Any]) -> Iterator[None]:
    """While tracing: Keras's functions of single rows of logits may be computed in another way.

    `row_function(function, labels, logits, dtype=...)` gets a function of labels (rows,) and logits (rows, classes),
    and returns its values for all rows, or None for Keras's way. A metric's function has the dtype of its
    values; for a loss, none is given.
    """
    from keras.src.backend import tensorflow as backend

    operations = backend.ops if hasattr(backend, "ops") else backend  # Keras 3.16 has them in modules of their own
    math, nn, numpy = (private_part(operations, name) for name in ("math", "nn", "numpy"))
    crossentropy = private_part(nn, "sparse_categorical_crossentropy")
    argmax, in_top_k = private_part(numpy, "argmax"), private_part(math, "in_top_k")

    def new_crossentropy(target: Any, output: Any, from_logits: bool = False, axis: int = -1) -> Any:
        values = None
        if axis in (-1, len(output.shape) - 1):
            of_rows = functools.partial(crossentropy, from_logits=from_logits)
            values = row_function(of_rows, target, output)
        return crossentropy(target, output, from_logits, axis) if values is None else values

    def new_argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
        values = None
        if axis is not None and not keepdims and isinstance(x, tf.Tensor) and axis in (-1, len(x.shape) - 1):
            values = row_function(lambda labels, logits: argmax(logits, axis=-1), None, x, dtype=tf.int32)
        return argmax(x, axis, keepdims) if values is None else values

    def new_in_top_k(targets: Any, predictions: Any, k: int) -> Any:
        values = row_function(functools.partial(in_top_k, k=k), targets, predictions, dtype=tf.bool)
        return in_top_k(targets, predictions, k) if values is None else values

    with (
        patched(nn, sparse_categorical_crossentropy=new_crossentropy),
        patched(numpy, argmax=new_argmax),
        patched(math, in_top_k=new_in_top_k),
    ):
        yield


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


def computes_keras_attention(layer: keras.layers.Layer) -> bool:
    """Whether a `MultiHeadAttention` computes attention as Keras does, and not the flash attention that it refuses."""
    return keeps_methods(layer, keras.layers.MultiHeadAttention, _COMPUTE) and not private_part(
        layer, "_flash_attention"
    )


def attends_over(layer: keras.layers.MultiHeadAttention, *, axes: tuple[int, ...]) -> bool:
    """Whether a built layer attends over these axes of its inputs."""
    return tuple(private_part(layer, "_attention_axes")) == axes


def attention_scale(layer: keras.layers.MultiHeadAttention) -> float:
    """The factor of the scores of queries and keys."""
    return float(private_part(layer, "_inverse_sqrt_key_dim"))


def drops_scores(layer: keras.layers.MultiHeadAttention) -> bool:
    """Whether a layer drops attention scores while it trains."""
    return private_part(layer, "_dropout") > 0.0


def attention_shares(layer: keras.layers.MultiHeadAttention, scores: Any, query: Any, value: Any, **given: Any) -> Any:
    """The softmax of scores `(batch, heads, queries, keys)` in a layer with dropout: masked, then dropped."""
    mask = given.get("attention_mask")
    if given.get("use_causal_mask"):
        causal = private_part(layer, "_compute_causal_mask")(query, value)
        mask = causal if mask is None else keras.ops.logical_and(keras.ops.cast(mask, "bool"), causal)
    found = private_part(layer, "_masked_softmax")(scores, mask)
    return private_part(layer, "_dropout_layer")(found, training=given.get("training"))


def keras_attention(layer: keras.layers.MultiHeadAttention, *arguments: Any, **options: Any) -> Any:
    """Attention as Keras computes it; returns the outputs and the scores, or None."""
    return private_part(type(layer), _COMPUTE)(layer, *arguments, **options)


def attention_attributes(compute: Callable[..., Any]) -> dict[str, Any]:
    """Attributes that make a layer compute attention with `compute(query, key, value, **options)`."""

    def by_position(query: Any, key: Any, value: Any, *arguments: Any, **options: Any) -> Any:
        names = ("attention_mask", "training", "return_attention_scores")  # Keras passes these by position
        return compute(query, key, value, **dict(zip(names, arguments, strict=False)), **options)

    return {_COMPUTE: by_position}


def state_around_call(layer: keras.layers.Layer) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Inside a layer's `call`: a function whose context has the same call context and autocasting.

    The call context carries `training` to inner layers that are called without it; autocasting gives the layer's
    weights its compute dtype.
    """
    from keras.src.backend import common
    from keras.src.backend.common import global_state

    read, write = private_part(global_state, "get_global_attribute"), private_part(global_state, "set_global_attribute")
    scope = private_part(common, "AutocastScope")
    context = read(_CONTEXT)
    casts = layer.autocast and layer.compute_dtype != layer.variable_dtype

    @contextlib.contextmanager
    def state() -> Iterator[None]:
        before = read(_CONTEXT)
        write(_CONTEXT, context)
        try:
            with scope(layer.compute_dtype if casts else None):
                yield
        finally:
            write(_CONTEXT, before)

    return state


def takes_keras_moments(layer: keras.layers.Layer) -> bool:
    """Whether a layer is a `BatchNormalization` that does not override how Keras computes its statistics."""
    return keeps_methods(layer, keras.layers.BatchNormalization, "call", "_moments")


def uses_own_rows(layer: keras.layers.BatchNormalization) -> bool:
    """Whether a layer computes its statistics over the rows of its replica; calls what wants to notice that."""
    moments = vars(layer).get("_moments")
    if moments is None:
        return not layer.synchronized
    if not hasattr(moments, "notice"):
        return False
    moments.notice()
    return True


class Exchange(Protocol):
    """How one replica's sums become those of all replicas, while its step is traced."""

    def own(self, sums: tf.Tensor) -> tf.Tensor:
        """A replica's sums over its rows; zeros if its only row is borrowed from another replica."""

    def sum(self, values: tf.Tensor) -> tf.Tensor:
        """The sum over the replicas."""

    def gradient(self, upstream: tf.Tensor) -> tf.Tensor:
        """The gradient of `sum` with respect to this replica's values."""


def global_moments(layer: keras.layers.BatchNormalization, exchange: Exchange) -> dict[str, Any]:
    """Attributes that make a layer compute mean and variance over the rows of all replicas, as on one device.

    The gradient is written out: it passes over the activations once, where that of `tf.nn.moments` does several times.
    """

    def moments(inputs: tf.Tensor, mask: Any = None) -> tuple[tf.Tensor, tf.Tensor]:
        axes, channels = private_part(layer, "_reduction_axes"), inputs.shape[layer.axis]
        shape = [1] * len(inputs.shape)
        shape[layer.axis] = channels
        valid = None
        if mask is not None:
            valid = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))

        def summed(values: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(values if valid is None else tf.where(valid, values, tf.zeros_like(values)), axes)

        @tf.custom_gradient
        def of_all_rows(x: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], Callable[..., tf.Tensor]]:
            if valid is None:
                own_count = tf.cast(tf.fill([channels], tf.size(x) // channels), x.dtype)
            else:
                own_count = summed(tf.ones_like(x))
            sums = exchange.sum(exchange.own(tf.stack([summed(x), own_count])))
            count = sums[1] + (0.0 if valid is None else keras.backend.epsilon())  # as Keras adds it
            mean = sums[0] / count
            deviations = x - tf.reshape(mean, shape)
            variance = exchange.sum(exchange.own(summed(tf.square(deviations)))) / count

            def gradient(of_mean: tf.Tensor, of_variance: tf.Tensor) -> tf.Tensor:
                # Deviations from the mean sum to zero, so the variance has no gradient through the mean.
                upstream = exchange.own(exchange.gradient(tf.stack([of_mean, 2.0 * of_variance]) / count))
                of_x = (x - tf.reshape(mean, shape)) * tf.reshape(upstream[1], shape) + tf.reshape(upstream[0], shape)
                return of_x if valid is None else tf.where(valid, of_x, tf.zeros_like(of_x))

            return (mean, variance), gradient

        return of_all_rows(inputs)

    return {"_moments": moments}


def noticed_moments(layer: keras.layers.BatchNormalization, notice: Callable[[], Any]) -> dict[str, Any]:
    """Attributes that make a layer call `notice` whenever it computes batch statistics."""
    moments = private_part(layer, "_moments")

    def noticed(inputs: tf.Tensor, mask: Any = None) -> Any:
        notice()
        return moments(inputs, mask)

    noticed.notice = notice  # type: ignore[attr-defined]
    return {"_moments": noticed}


def computes_as_keras(layer: keras.layers.Layer, kind: type[keras.layers.RNN]) -> bool:
    """Whether a layer is a Keras `LSTM` or `GRU` whose computation is not overridden, with the default settings.

    These are the default activations, the default `implementation` and no recurrent dropout.
    """
    cell_kind = keras.layers.LSTMCell if kind is keras.layers.LSTM else keras.layers.GRUCell
    if not keeps_methods(layer, kind, "call", "inner_loop") or layer.use_cudnn is True:
        return False
    cell, activations = layer.cell, keras.activations
    # An unknown version of Keras may compute the gates elsewhere; then this raises an error.
    names = ("call", _GATES_OF_LSTM) if cell_kind is keras.layers.LSTMCell else ("call",)
    if type(cell) is not cell_kind or not keeps_methods(cell, cell_kind, *names):
        return False
    is_usual = cell.activation is activations.tanh and cell.recurrent_activation is activations.sigmoid
    return is_usual and cell.implementation == 2 and not cell.recurrent_dropout
