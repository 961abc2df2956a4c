"""Puts fused kernels in place of Keras's operations while a training step is traced; the kernels of most layers.

The user's layers and optimizers keep their classes, weights and files: only the graph is another one. Each kernel
computes the same function as Keras, with other rounding. A layer or an optimizer whose class overrides Keras's
computation is left alone, and so is what XLA compiles: it fuses by itself. Only attention is replaced there, on GPUs.

* `Dense` and `EinsumDense` are one matrix product: Keras's einsum multiplies a batch of matrices, and the gradient of a
  kernel is one matrix per example, and then their sum. The gradient of their biases is another: TensorFlow sums it in
  bfloat16 on CPUs, which over 16,384 rows is off by 15 %. The gradient of the GELU in closed form computes the normal
  distribution once instead of twice (Hendrycks and Gimpel, 2016, https://arxiv.org/abs/1606.08415).
* The kernel of a `Conv2D` in bfloat16 on a CPU has a gradient of one matrix product for each of its positions where the
  images are small: TensorFlow's own gradient takes longer there.
* Layer normalization has a gradient in closed form (Ba, Kiros and Hinton, 2016, https://arxiv.org/abs/1607.06450), and
  batch normalization is TensorFlow's kernel `tf.compat.v1.nn.fused_batch_norm`: by the mean and the biased variance of
  the batch, in float32 also for half precision. Automatic differentiation of Keras's operations reads and writes the
  activations about twice as often. The kernel's second derivatives, as in a gradient penalty, are complete; those of
  `tf.nn.moments`, on which Keras's layer rests, leave out a term.
* Attention is two batched matrix products, with one transposition of query, key, value and result. Keras's einsums
  transpose again in the forward and in the backward pass.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from tfaccel.hardware.detect import detect_hardware
from tfaccel.training.kernels.flash_attention import flash_kernel
from tfaccel.training.kernels.optimizer_updates import fused_update
from tfaccel.training.kernels.recurrent import fused_gru, fused_lstm
from tfaccel.training.private import private_api, private_layers
from tfaccel.training.steps.model_parts import get_optimizers, inner_optimizer
from tfaccel.training.steps.overrides import attributes_of_each, keeps_methods

_HALF = (tf.bfloat16, tf.float16)

_DTYPES = (tf.float32, tf.bfloat16, tf.float16)
_SMALLEST_EPSILON = 1.001e-5  # the kernel replaces smaller ones by this one
_MULTIPLY = ("AVX512_BF16", "AMX_BF16", "BF16")  # instruction sets for bfloat16
_MAX_IMAGE, _MIN_CHANNELS = 8, 32  # sides and channels for which products are faster than a convolution
_MASKED_SCORE = -0.7 * 3.38953e38  # as in Keras; -inf would make the softmax of a row without any key NaN


def fused_dense(layer: keras.layers.Layer) -> dict[str, Any]:
    """Attributes that make a `Dense` in half precision use `add_bias`; {} for other layers and those without a bias."""
    if not keeps_methods(layer, keras.layers.Dense, "call") or not layer.use_bias:
        return {}
    keras_call = layer.call

    def call(inputs: Any, training: bool | None = None) -> Any:
        if not _is_dense(inputs, of=_HALF):
            return keras_call(inputs, training=training)
        outputs = add_bias(keras.ops.matmul(inputs, layer.kernel), keras.ops.convert_to_tensor(layer.bias))
        return outputs if layer.activation is None else layer.activation(outputs)

    return {"call": call}


def fused_einsum_dense(layer: keras.layers.Layer) -> dict[str, Any]:
    """Attributes that make an `EinsumDense` multiply two matrices where its equation allows it; {} for other layers.

    The equation must contract the last axes of the inputs with the first axes of the kernel, in the same order, as in
    the projections of `MultiHeadAttention`. Inputs in float64 are left to Keras.
    """
    if not keeps_methods(layer, keras.layers.EinsumDense, "call"):
        return {}
    num_contracted = num_contracted_axes(layer.equation)
    if num_contracted is None:
        return {}
    keras_call = layer.call

    def call(inputs: Any, training: bool | None = None) -> Any:
        if not _is_dense(inputs, of=(tf.float32, *_HALF)):
            return keras_call(inputs, training=training)
        kernel = keras.ops.convert_to_tensor(layer.kernel)
        size, units = math.prod(kernel.shape[:num_contracted]), kernel.shape[num_contracted:]
        leading = inputs.shape[: inputs.shape.rank - num_contracted]
        outputs = tf.matmul(tf.reshape(inputs, [-1, size]), tf.reshape(kernel, [size, -1]))
        bias = None if layer.bias is None else keras.ops.convert_to_tensor(layer.bias)
        if bias is not None and bias.shape == units:
            outputs, bias = add_bias(outputs, tf.reshape(bias, [-1])), None
        outputs = tf.reshape(outputs, tf.concat([tf.shape(inputs)[: len(leading)], units], 0))
        outputs.set_shape([*leading, *units])
        outputs = outputs if bias is None else outputs + bias
        return outputs if layer.activation is None else layer.activation(outputs)

    return {"call": call}


def _is_dense(inputs: Any, *, of: tuple[tf.DType, ...]) -> bool:
    return isinstance(inputs, tf.Tensor) and inputs.shape.rank is not None and inputs.dtype in of


def num_contracted_axes(equation: str) -> int | None:
    """The number of axes that an equation contracts, if it is one product of matrices; else None.

    Example:
        >>> [num_contracted_axes(one) for one in ("abc,cde->abde", "abcd,cde->abe", "...x,xy->...y")]
        [1, 2, 1]
        >>> [num_contracted_axes(one) for one in ("abc,cd->adb", "abc,acd->abd")]
        [None, None]
    """
    inputs, kernel, outputs = (
        list(part.replace(" ", "").replace("...", ".")) for part in equation.replace("->", ",").split(",")
    )
    contracted = [axis for axis in kernel if axis not in outputs]
    leading, units = inputs[: len(inputs) - len(contracted)], kernel[len(contracted) :]
    is_product = inputs == leading + contracted and kernel == contracted + units and outputs == leading + units
    is_plain = len({*inputs}) == len(inputs) and len({*outputs}) == len(outputs) and bool(contracted) and bool(leading)
    return len(contracted) if is_product and is_plain else None


@tf.custom_gradient
def add_bias(values: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], Any]]:
    """Adds a bias to the last axis; its gradient is summed by a matrix product, which accumulates in float32.

    Args:
        values: a float tensor.
        bias: of the same dtype, with the length of the last axis.

    Example:
        >>> add_bias(tf.zeros([2, 3]), tf.constant([1.0, 2.0, 3.0])).numpy().tolist()
        [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]
    """

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.reshape(upstream, [-1, bias.shape[0]])
        return upstream, tf.matmul(tf.ones_like(rows[:, :1]), rows, transpose_a=True)[0]

    return tf.nn.bias_add(values, bias), gradient


def fused_convolution(layer: keras.layers.Layer) -> dict[str, Any]:
    """Attributes that make a `Conv2D` use `convolution` for small images in bfloat16 on CPUs; {} for other layers.

    The convolution has strides of 1, no dilation, "same" padding and a kernel of odd sides.
    """
    fits = _multiplies_on_cpu() and keeps_methods(layer, keras.layers.Conv2D, "call", "convolution_op")
    fits = fits and layer.padding == "same" and layer.data_format == "channels_last" and layer.groups == 1
    if not fits or {*layer.strides, *layer.dilation_rate} != {1} or not all(side % 2 for side in layer.kernel_size):
        return {}
    keras_operation = layer.convolution_op

    def operation(inputs: Any, kernel: Any) -> Any:
        if not _is_dense(inputs, of=(tf.bfloat16,)):
            return keras_operation(inputs, kernel)
        *sides, channels = inputs.shape[1:]
        is_small = all(side and side <= _MAX_IMAGE for side in sides)
        if not is_small or min(channels or 0, layer.filters) < _MIN_CHANNELS:
            return keras_operation(inputs, kernel)
        return convolution(inputs, keras.ops.convert_to_tensor(kernel))

    return {"convolution_op": operation}


@tf.custom_gradient
def convolution(images: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], Any]]:
    """A convolution of stride 1 with "same" padding, whose kernel's gradient is a matrix product per position.

    Args:
        images: shape `(batch, height, width, channels)`, all known but the first.
        kernel: shape `(rows, columns, channels, filters)`, of odd rows and columns, in the dtype of the images.

    Example:
        >>> convolution(tf.ones([1, 2, 2, 1]), tf.ones([3, 3, 1, 1]))[0, :, :, 0].numpy().tolist()
        [[4.0, 4.0], [4.0, 4.0]]
    """
    (height, width, channels), (rows, columns, _, filters) = images.shape[1:], kernel.shape

    def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        border = [[side // 2, side // 2] for side in (rows, columns)]
        around = tf.pad(images, [[0, 0], *border, [0, 0]])
        upstream_rows = tf.reshape(upstream, [-1, filters])
        moved = (
            tf.reshape(around[:, top : top + height, left : left + width], [-1, channels])
            for top, left in itertools.product(range(rows), range(columns))
        )
        products = [tf.matmul(one, upstream_rows, transpose_a=True) for one in moved]
        of_images = tf.nn.conv2d_transpose(upstream, kernel, tf.shape(images), 1, "SAME")
        return of_images, tf.reshape(tf.stack(products), [rows, columns, channels, filters])

    return tf.nn.conv2d(images, kernel, 1, "SAME"), gradients


def fused_gelu(layer: keras.layers.Layer) -> dict[str, Any]:
    """Attributes that make a layer with `activation="gelu"` use `gelu`; {} for other layers."""
    return {"activation": _activation} if getattr(layer, "activation", None) is keras.activations.gelu else {}


def _activation(x: Any, approximate: bool = False) -> Any:
    return keras.activations.gelu(x, approximate=approximate) if approximate else gelu(x)


@tf.custom_gradient
def gelu(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """`x` times the probability that a normally distributed number is less than `x`, as `keras.activations.gelu`.

    Example:
        >>> round(float(gelu(tf.constant(1.0))), 4)
        0.8413
    """
    below = 0.5 * tf.math.erfc(x * -math.sqrt(0.5))

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        density = tf.exp(-0.5 * tf.square(x)) / math.sqrt(2.0 * math.pi)
        return upstream * (below + x * density)

    return x * below, gradient


def fused_layer_normalization(layer: keras.layers.Layer) -> dict[str, Any]:
    """Attributes that make a `LayerNormalization` over the last axis use `layer_norm`; {} for other layers.

    Inputs or weights in float64 are left to Keras.
    """
    if not keeps_methods(layer, keras.layers.LayerNormalization, "call") or layer.rms_scaling:
        return {}
    keras_call = layer.call

    def call(inputs: Any) -> Any:
        axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
        is_last = [axis % len(inputs.shape) for axis in axes] == [len(inputs.shape) - 1]
        is_known = inputs.dtype in _DTYPES and layer.variable_dtype != "float64" and inputs.shape[-1] is not None
        if not (is_last and is_known):
            return keras_call(inputs)
        size = inputs.shape[-1]
        gamma = tf.ones([size]) if layer.gamma is None else tf.cast(layer.gamma, tf.float32)
        beta = tf.zeros([size]) if layer.beta is None else tf.cast(layer.beta, tf.float32)
        return tf.cast(layer_norm(inputs, gamma, beta, layer.epsilon), layer.compute_dtype)

    return {"call": call}


def layer_norm(inputs: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Normalizes each row of the last axis to mean 0 and variance 1, then scales and shifts it.

    Args:
        inputs: a float tensor; half precision is computed in float32.
        gamma, beta: float32, of the length of the last axis.
        epsilon: added to the variance.

    Returns:
        A tensor of the shape and dtype of `inputs`.

    Example:
        >>> layer_norm(tf.constant([[1.0, 3.0]]), tf.ones([2]), tf.zeros([2]), 0.0).numpy().tolist()
        [[-1.0, 1.0]]
    """

    @tf.custom_gradient
    def normalized(inputs: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        size = inputs.shape[-1]
        rows = tf.reshape(tf.cast(inputs, tf.float32), [-1, size])
        deviations = rows - tf.reduce_mean(rows, -1, keepdims=True)
        scale = tf.math.rsqrt(tf.reduce_mean(tf.square(deviations), -1, keepdims=True) + epsilon)
        standard = deviations * scale

        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            upstream = tf.reshape(tf.cast(upstream, tf.float32), [-1, size])
            weighted = upstream * standard
            means = gamma[:, tf.newaxis] / size  # a row's product with them is its mean, weighted by gamma
            projection = standard * tf.matmul(weighted, means)
            of_rows = (upstream * gamma - tf.matmul(upstream, means) - projection) * scale
            of_inputs = tf.reshape(tf.cast(of_rows, inputs.dtype), tf.shape(inputs))
            return of_inputs, tf.reduce_sum(weighted, 0), tf.reduce_sum(upstream, 0)

        return tf.reshape(tf.cast(standard * gamma + beta, inputs.dtype), tf.shape(inputs)), gradients

    return normalized(inputs, gamma, beta)


def fused_batch_normalization(layer: keras.layers.Layer) -> dict[str, Any]:
    """Attributes that make a `BatchNormalization` use the kernel in training, where it can; {} for other layers.

    The kernel takes inputs of shape `(batch, height, width, channels)` without a mask, and weights in float32. Keras's
    operations compute everything else: statistics over the rows of several replicas, renormalization, inference.
    """
    if not private_layers.takes_keras_moments(layer) or layer.renorm or layer.epsilon < _SMALLEST_EPSILON:
        return {}
    keras_call = layer.call

    def call(inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        fits = len(inputs.shape) == 4 and layer.axis in (-1, 3) and inputs.shape[-1] is not None
        fits = fits and inputs.dtype in _DTYPES and layer.variable_dtype == "float32"
        if not (fits and training and layer.trainable and mask is None and private_layers.uses_own_rows(layer)):
            return keras_call(inputs, training=training, mask=mask)
        channels = inputs.shape[-1]
        outputs, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            inputs,
            tf.convert_to_tensor(layer.gamma) if layer.scale else tf.ones([channels]),
            tf.convert_to_tensor(layer.beta) if layer.center else tf.zeros([channels]),
            epsilon=layer.epsilon,
        )[:3]
        count = tf.cast(tf.reduce_prod(tf.shape(inputs)[:3]), tf.float32)
        biased = variance * ((count - 1.0) / count)
        for moving, value in ((layer.moving_mean, mean), (layer.moving_variance, biased)):
            moving.assign(moving * layer.momentum + value * (1.0 - layer.momentum))
        return tf.cast(outputs, layer.compute_dtype)

    return {"call": call}


def fused_attention(layer: keras.layers.Layer) -> dict[str, Any]:
    """Attributes that make a `MultiHeadAttention` use `attention` where it can; {} for other layers.

    Left to Keras are attention over several axes or another one than the first, float64, and calls that return scores.
    """
    if not private_layers.computes_keras_attention(layer):
        return {}

    def compute(query: Any, key: Any, value: Any, **given: Any) -> Any:
        fits = len(query.shape) == 4 and private_layers.attends_over(layer, axes=(1,))
        is_known = all(one.dtype == query.dtype and one.dtype != tf.float64 for one in (query, key, value))
        if not (fits and is_known) or given.get("return_attention_scores"):
            return private_layers.keras_attention(layer, query, key, value, **given)
        if private_layers.drops_scores(layer):
            return _with_dropout(layer, query, key, value, **given), None
        mask = given.get("attention_mask")
        mask = None if mask is None else tf.cast(mask, tf.bool)
        scale, is_causal = private_layers.attention_scale(layer), bool(given.get("use_causal_mask"))
        return attention(query, key, value, mask, is_causal=is_causal, scale=scale), None

    return private_layers.attention_attributes(compute)


def attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    mask: tf.Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> tf.Tensor:
    """Scaled dot-product attention; the softmax is computed in float32.

    Args:
        query: shape `(batch, queries, heads, size)`.
        key, value: shapes `(batch, keys, heads, size)` and `(batch, keys, heads, value_size)`, of the query's dtype.
        mask: bool, shape `(batch, queries, keys)`, `(1, queries, keys)` or `(batch, heads, queries, keys)`: True where
            a query may use a key. A query without any key uses all of them alike.
        is_causal: whether a query may only use keys up to its own position.
        scale: the factor of the scores, by default the inverse square root of `size`.

    Returns:
        Shape `(batch, queries, heads, value_size)`.

    Example:
        >>> attention(tf.ones([1, 2, 1, 4]), tf.ones([1, 3, 1, 4]), tf.ones([1, 3, 1, 5])).shape.as_list()
        [1, 2, 1, 5]
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if math.frexp(scale)[0] == 0.5:  # a power of two: exact, and a query has fewer values than the scores
        scores = tf.cast(_products(query * tf.cast(scale, query.dtype), key), tf.float32)
    else:
        scores = tf.cast(_products(query, key), tf.float32) * scale
    if is_causal:
        causal = tf.linalg.band_part(tf.ones(tf.shape(scores)[2:], tf.bool), -1, 0)
        mask = causal if mask is None else tf.logical_and(causal, mask)
    if mask is not None:
        mask = mask[:, tf.newaxis] if mask.shape.rank == 3 else mask
        scores = tf.where(mask, scores, _MASKED_SCORE)
    return _selected(tf.cast(tf.nn.softmax(scores), value.dtype), value)


def _with_dropout(layer: keras.layers.Layer, query: Any, key: Any, value: Any, **given: Any) -> tf.Tensor:
    """Attention that drops scores, whose softmax Keras computes in the layer's own dtype."""
    scores = _products(query * tf.cast(private_layers.attention_scale(layer), query.dtype), key)
    return _selected(private_layers.attention_shares(layer, scores, query, value, **given), value)


def _products(query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    query, key = (tf.transpose(one, [0, 2, 1, 3]) for one in (query, key))
    return _product(query, key, transpose_b=True)


def _selected(shares: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    return tf.transpose(_product(shares, tf.transpose(value, [0, 2, 1, 3])), [0, 2, 1, 3])


def _product(one: tf.Tensor, other: tf.Tensor, *, transpose_b: bool = False) -> tf.Tensor:
    """A batched product; its sums are never rounded to bfloat16 on the way."""
    if one.dtype == tf.bfloat16 and _rounds_sums():
        wide = tf.matmul(tf.cast(one, tf.float32), tf.cast(other, tf.float32), transpose_b=transpose_b)
        return tf.cast(wide, one.dtype)
    return tf.matmul(one, other, transpose_b=transpose_b)


@functools.cache
def _rounds_sums() -> bool:
    """Whether TensorFlow adds in bfloat16: on CPUs that do not multiply in it."""
    return not tf.config.list_physical_devices("GPU") and not _multiplies_on_cpu()


@functools.cache
def _multiplies_on_cpu() -> bool:
    """Whether there is no GPU, and the CPU multiplies in bfloat16."""
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    return not has_gpu and bool(set(_MULTIPLY) & set(detect_hardware().cpu_features))


LAYER_KERNELS = (
    *(fused_dense, fused_einsum_dense, fused_convolution, fused_gelu, fused_attention),
    *(fused_batch_normalization, fused_layer_normalization, fused_lstm, fused_gru),
)


def fused_kernels(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """While tracing a training step: the model's layers and optimizers use fused kernels where there are some."""
    layers = ((layer, kernel(layer)) for layer in private_api.all_layers(model) for kernel in LAYER_KERNELS)
    optimizers = ((one, fused_update(one)) for one in map(inner_optimizer, get_optimizers(model).values()))
    return attributes_of_each(itertools.chain(layers, optimizers))


def kernels_in_xla(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """While tracing a training step that XLA compiles for GPUs: attention is one kernel where it can be."""
    return attributes_of_each((layer, flash_kernel(layer)) for layer in private_api.all_layers(model))


def kernels_need_float32(model: keras.Model) -> bool:
    """Whether most weights of a model, but for embeddings, are those of layers whose fused kernels are for float32.

    Example:
        >>> recurrent = keras.Sequential([keras.Input((8, 4)), keras.layers.GRU(16), keras.layers.Dense(2)])
        >>> kernels_need_float32(recurrent)
        True
    """

    def num_weights(layers: Iterable[keras.layers.Layer]) -> int:
        return sum(math.prod(one.shape) for layer in layers for one in layer.trainable_variables)

    layers = private_api.all_layers(model)
    recurrent = [layer for layer in layers if fused_lstm(layer) or fused_gru(layer)]
    embeddings = [layer for layer in layers if isinstance(layer, keras.layers.Embedding)]
    return num_weights(recurrent) > (num_weights([model]) - num_weights(embeddings)) / 2
