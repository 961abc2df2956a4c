"""Fused kernels compute what Keras's operations compute: each as close to float64 as Keras's, or equal in training."""

import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfaccel.errors import PlanError
from tfaccel.planning.plan import Plan
from tfaccel.training.fit import plan_of_model
from tfaccel.training.kernels import fused_kernels as module
from tfaccel.training.kernels.fused_kernels import LAYER_KERNELS, convolution, fused_einsum_dense, fused_kernels

pytestmark = pytest.mark.usefixtures("logical_devices")

RNG = np.random.default_rng(0)
IMAGES = (RNG.normal(2.0, 3.0, size=(16, 6, 6, 8)), lambda: layers.BatchNormalization(momentum=0.8))
TOKENS = RNG.normal(1.0, 2.0, size=(4, 6, 8))
MASK = RNG.random(size=(4, 6, 6)) < 0.6
MASK[:2, 1] = False  # queries without any key
LAYERS = {
    "batch normalization": IMAGES,
    "batch normalization with the epsilon of keras.applications": (
        IMAGES[0],
        lambda: layers.BatchNormalization(epsilon=1.001e-5),
    ),
    "batch normalization without scale": (IMAGES[0], lambda: layers.BatchNormalization(scale=False, center=False)),
    "layer normalization": (TOKENS, layers.LayerNormalization),
    "layer normalization without scale": (TOKENS, lambda: layers.LayerNormalization(scale=False, center=False)),
    "GELU": (TOKENS, lambda: layers.Dense(5, activation="gelu")),
    "attention": (TOKENS, lambda: SelfAttention(2, 4)),
    "attention of another size": (TOKENS, lambda: SelfAttention(2, 3)),
    "EinsumDense": (TOKENS, lambda: layers.EinsumDense("abc,cde->abde", (6, 2, 3), bias_axes="de", activation="gelu")),
    "EinsumDense of two axes": (TOKENS, lambda: layers.EinsumDense("abc,bcd->ad", (5,), bias_axes="d")),
    "EinsumDense with an ellipsis": (TOKENS, lambda: layers.EinsumDense("...x,xy->...y", 7, bias_axes="y")),
    "EinsumDense with a bias per position": (
        TOKENS,
        lambda: layers.EinsumDense("abc,cd->abd", (6, 5), bias_axes="bd"),
    ),
    "EinsumDense with LoRA": (TOKENS, lambda: with_lora(layers.EinsumDense("abc,cd->abd", (6, 5)))),
    "causal attention": (TOKENS, lambda: SelfAttention(2, 4, use_causal_mask=True)),
    "masked attention": (TOKENS, lambda: SelfAttention(2, 4, attention_mask=MASK)),
    "masked causal attention of heads": (
        TOKENS,
        lambda: SelfAttention(2, 4, attention_mask=np.stack([MASK, ~MASK], 1), use_causal_mask=True),
    ),
    "attention with dropout": (TOKENS, lambda: SelfAttention(2, 4, dropout=0.5, seed=3)),
    "masked causal attention with dropout": (
        TOKENS,
        lambda: SelfAttention(2, 4, dropout=0.5, seed=3, attention_mask=MASK, use_causal_mask=True),
    ),
}
OF_THE_SAME_OPERATIONS = {
    "batch normalization of vectors": (TOKENS[0], layers.BatchNormalization),
    "a tiny epsilon": (IMAGES[0], lambda: layers.BatchNormalization(epsilon=1e-6)),
    "renormalization": (IMAGES[0], lambda: layers.BatchNormalization(renorm=True)),
    "another axis": (IMAGES[0], lambda: layers.LayerNormalization(axis=1)),
    "approximate GELU": (TOKENS, lambda: layers.Dense(5, activation=lambda x: keras.ops.gelu(x, approximate=True))),
    "batch normalization in bfloat16": (IMAGES[0], lambda: layers.BatchNormalization(dtype="bfloat16")),
    "batch normalization of integers": (
        IMAGES[0],
        lambda: Around(layers.BatchNormalization(), lambda x: tf.cast(x, tf.int32)),
    ),
    "layer normalization in float64 of float32": (
        TOKENS,
        lambda: Around(layers.LayerNormalization(dtype="float64"), tf.identity),
    ),
    "layer normalization of an unknown size": (
        TOKENS,
        lambda: Around(
            layers.LayerNormalization(scale=False, center=False),
            lambda x: tf.compat.v1.placeholder_with_default(x, [None, 6, None]),
        ),
    ),
    "approximate GELU of a layer's own": (
        TOKENS,
        lambda: ApproximateGelu(activation="gelu"),
    ),
    "attention in float64": (TOKENS, lambda: SelfAttention(2, 4, dtype="float64")),
    "EinsumDense that exchanges axes": (TOKENS, lambda: layers.EinsumDense("abc,cd->adb", (5, 6))),
    "EinsumDense with a kernel per position": (TOKENS, lambda: layers.EinsumDense("abc,bcd->abd", (6, 5))),
    "EinsumDense with its own call": (TOKENS, lambda: doubling(layers.EinsumDense("abc,cd->abd", (6, 5)), "call")),
    "attention over the rows with dropout": (
        TOKENS,
        lambda: SelfAttention(2, 4, attention_axes=(0,), dropout=0.5, seed=3),
    ),
    "attention that returns its scores": (TOKENS, lambda: SelfAttention(2, 4, return_attention_scores=True)),
    "a subclass": (IMAGES[0], lambda: Doubled()),
    "batch normalization with its own call": (IMAGES[0], lambda: doubling(layers.BatchNormalization(), "call")),
    "batch normalization with its own moments": (IMAGES[0], lambda: doubling(layers.BatchNormalization(), "_moments")),
    "layer normalization with its own call": (TOKENS, lambda: doubling(layers.LayerNormalization(), "call")),
    "its own attention": (TOKENS, lambda: doubling(SelfAttention(2, 4), "attention._compute_attention")),
}


SMALL_IMAGES = RNG.normal(size=(16, 6, 8, 32))
CONVOLUTIONS = {
    "small images": (SMALL_IMAGES, lambda: layers.Conv2D(32, (3, 5), padding="same", activation="relu")),
    "larger images": (RNG.normal(size=(4, 6, 9, 32)), lambda: layers.Conv2D(32, 3, padding="same")),
    "few channels": (RNG.normal(size=(4, 6, 6, 16)), lambda: layers.Conv2D(32, 3, padding="same")),
    "few filters": (SMALL_IMAGES, lambda: layers.Conv2D(16, 3, padding="same")),
    "strides": (SMALL_IMAGES, lambda: layers.Conv2D(32, 3, strides=2, padding="same")),
    "no padding": (SMALL_IMAGES, lambda: layers.Conv2D(32, 3)),
    "dilation": (SMALL_IMAGES, lambda: layers.Conv2D(32, 3, dilation_rate=2, padding="same")),
    "groups": (SMALL_IMAGES, lambda: layers.Conv2D(32, 3, groups=2, padding="same")),
    "an even kernel": (SMALL_IMAGES, lambda: layers.Conv2D(32, 2, padding="same")),
    "its own operation": (SMALL_IMAGES, lambda: doubling(layers.Conv2D(32, 3, padding="same"), "convolution_op")),
}


def some(cases, *, slow):
    """The cases, those whose names match left to --all."""
    return [pytest.param(name, marks=pytest.mark.slow if re.search(slow, name) else ()) for name in cases]


class SelfAttention(layers.Layer):
    def __init__(self, *arguments, **options):
        super().__init__()
        names = {"attention_mask", "use_causal_mask", "return_attention_scores"} & {*options}
        self.of_call = {name: options.pop(name) for name in names}
        self.attention = layers.MultiHeadAttention(*arguments, **options)

    def call(self, x, training=False):
        found = self.attention(x, x, training=training, **self.of_call)
        return found[0] + keras.ops.mean(found[1]) if isinstance(found, tuple) else found


class Around(layers.Layer):
    """A layer with an operation before it."""

    def __init__(self, layer, before):
        super().__init__()
        self.layer, self.before = layer, before

    def build(self, shape):
        self.layer.build(shape)

    def call(self, x):
        return tf.ensure_shape(self.layer(self.before(x)), x.shape)


class ApproximateGelu(layers.Activation):
    def call(self, x):
        return self.activation(x, approximate=True)


class Doubled(layers.BatchNormalization):
    def call(self, inputs, training=None, mask=None):
        return 2.0 * super().call(inputs, training=training, mask=mask)


def doubling(layer, path):
    """The layer, with a method set on the instance that doubles what Keras's method returns."""
    *parents, name = path.split(".")
    owner = functools.reduce(getattr, parents, layer)
    method = getattr(owner, name)

    def doubled(*arguments, **options):
        return keras.tree.map_structure(lambda one: None if one is None else 2.0 * one, method(*arguments, **options))

    setattr(owner, name, doubled)
    return layer


def with_lora(layer):
    layer.build(TOKENS.shape)
    layer.enable_lora(2)
    return layer


def results(name, dtype, *, fused, cases=None):
    """Outputs and gradients of five training steps on other inputs, the state after them, and the traced operations."""
    values, make = (cases or LAYERS)[name]
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(dtype)
    try:
        layer = make()
    finally:
        keras.config.set_dtype_policy("float32")
    model = keras.Sequential([keras.Input(values.shape[1:], dtype=layer.compute_dtype), layer])
    for weight in model.trainable_variables:
        weight.assign(weight + 0.3 * np.random.default_rng(2).normal(size=weight.shape))
    batches = [tf.cast(np.random.default_rng(seed).permuted(values), layer.compute_dtype) for seed in range(5)]

    @tf.function(autograph=False)
    def step(inputs):
        if fused:
            with fused_kernels(model):
                return run(inputs)
        return run(inputs)

    def run(inputs):
        # Without the keys' bias: it moves all scores of a query alike, so its gradient is zero, and the rest rounding.
        weights = [weight.value for weight in model.trainable_variables if not weight.path.endswith("key/bias")]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = model(inputs, training=True)
            loss = tf.reduce_sum(tf.cast(outputs, tf.float64) * np.random.default_rng(3).normal(size=outputs.shape))
        return outputs, *tape.gradient(loss, [inputs, *weights], unconnected_gradients="zero")

    steps = zip(*(step(inputs) for inputs in batches), strict=True)
    found = [np.asarray(tf.cast(tf.stack(values), tf.float64)) for values in steps]
    found += [np.asarray(weight, np.float64) for weight in model.non_trainable_variables]
    operations = [node.type for node in step.get_concrete_function(batches[0]).graph.get_operations()]
    return found, sorted(operations)


def distances(found, reference):
    """Differences, relative in the Euclidean norm."""
    norm = np.linalg.norm
    return [float(norm(a - b) / max(norm(b), 1e-12)) for a, b in zip(found, reference, strict=True)]


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", pytest.param("mixed_float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    some(LAYERS, slow="without scale|epsilon|of heads|with dropout|another|EinsumDense .*(axes|ellip)"),
)
def test_kernels_are_as_exact_as_kerass_operations(name, dtype):
    with_kernels, operations = results(name, dtype, fused=True)
    with_keras, operations_of_keras = results(name, dtype, fused=False)
    assert operations != operations_of_keras
    if dtype == "float32":
        assert max(distances(with_kernels, with_keras)) <= 1e-5
        return
    exact, _ = results(name, "float32", fused=False)
    for fused, of_keras in zip(distances(with_kernels, exact), distances(with_keras, exact), strict=True):
        assert fused <= 1.5 * of_keras + 1e-6


def test_a_convolution_of_small_images_is_as_exact_as_kerass():
    if not module._multiplies_on_cpu():
        pytest.skip("the CPU does not multiply in bfloat16")
    fused, operations = results("small images", "mixed_bfloat16", fused=True, cases=CONVOLUTIONS)
    of_keras, others = results("small images", "mixed_bfloat16", fused=False, cases=CONVOLUTIONS)
    assert "Conv2DBackpropFilter" in others and "Conv2DBackpropFilter" not in operations
    exact, _ = results("small images", "float32", fused=False, cases=CONVOLUTIONS)
    for of_kernel, of_operation in zip(distances(fused, exact), distances(of_keras, exact), strict=True):
        assert of_kernel <= 1.5 * of_operation + 1e-6


@pytest.mark.parametrize("name", [name for name in CONVOLUTIONS if name != "small images"])
def test_other_convolutions_keep_kerass_operations(name, monkeypatch):
    monkeypatch.setattr(module, "_multiplies_on_cpu", lambda: True)
    ours, of_keras = (results(name, "mixed_bfloat16", fused=fused, cases=CONVOLUTIONS)[1] for fused in (True, False))
    assert ours == of_keras


def test_derivatives_of_a_convolution_are_those_of_tensorflow():
    images, kernel = (tf.constant(RNG.normal(size=shape), tf.float64) for shape in ((3, 5, 4, 2), (3, 5, 2, 6)))
    weights = RNG.normal(size=(3, 5, 4, 6))

    def derivatives(convolve):
        with tf.GradientTape() as outer:
            outer.watch([images, kernel])
            with tf.GradientTape() as inner:
                inner.watch([images, kernel])
                value = tf.reduce_sum(tf.square(convolve(images, kernel)) * weights)
            first = inner.gradient(value, [images, kernel])
            penalty = sum(tf.reduce_sum(tf.square(one)) for one in first)
        return [*first, *outer.gradient(penalty, [images, kernel])]

    wanted = derivatives(lambda images, kernel: tf.nn.conv2d(images, kernel, 1, "SAME"))
    assert max(distances(derivatives(convolution), wanted)) <= 1e-12


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_layer_normalization_with_weights_in_half_precision_is_as_exact_as_kerass(dtype):
    (fused, operations), (of_keras, others) = (
        results("layer normalization", dtype, fused=fused) for fused in (True, False)
    )
    assert operations != others
    exact, _ = results("layer normalization", "float32", fused=False)
    for of_kernel, of_operations in zip(distances(fused, exact), distances(of_keras, exact), strict=True):
        assert of_kernel <= 1.5 * of_operations + 1e-6


@pytest.mark.parametrize(
    "name",
    some(
        OF_THE_SAME_OPERATIONS,
        slow="vectors|another|GELU$|returns|renorm|^batch.*own|integers|float64|unknown",
    ),
)
def test_other_layers_keep_kerass_operations(name, monkeypatch):
    if "attention" in name:  # its projections have a kernel of their own
        others = tuple(kernel for kernel in LAYER_KERNELS if kernel is not fused_einsum_dense)
        monkeypatch.setattr("tfaccel.training.kernels.fused_kernels.LAYER_KERNELS", others)
    found = [results(name, "float32", fused=fused, cases=OF_THE_SAME_OPERATIONS) for fused in (True, False)]
    assert found[0][1] == found[1][1]
    assert max(distances(found[0][0], found[1][0])) == 0.0


def test_a_plan_decides_and_refuses_what_contradicts_it():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    model.compile("adam", "mse")
    plan = plan_of_model(model, batch_size=4)
    assert not plan.fused_kernels
    for jit_compile in (True, False):
        fields = {"strategy": "none", "devices": ("CPU:0",), "global_batch_size": 4, "jit_compile": jit_compile}
        if jit_compile:
            with pytest.raises(PlanError, match=r"XLA fuses .* Use fused_kernels=False, or jit_compile=False"):
                Plan(**fields, fused_kernels=True)
        else:
            assert Plan(**fields, fused_kernels=True).fused_kernels


@pytest.mark.parametrize("name", some(["batch normalization", "layer normalization", "GELU"], slow="batch|GELU"))
def test_second_derivatives_are_those_of_float64(name):
    """A gradient penalty differentiates the gradient; the formulas are written out in float64."""
    values, make = LAYERS[name]
    layer = make()
    layer.build(values.shape)
    weights = np.random.default_rng(4).normal(size=(values.size // len(values), 1)) * 0.1

    def written_out(x):
        if name == "GELU":
            x = tf.tensordot(x, tf.cast(layer.kernel.value, tf.float64), 1)
            return x * 0.5 * tf.math.erfc(x * -np.sqrt(0.5))
        axes = [0, 1, 2] if name.startswith("batch") else [-1]
        deviations = x - tf.reduce_mean(x, axes, keepdims=True)
        return deviations * tf.math.rsqrt(tf.reduce_mean(deviations**2, axes, keepdims=True) + layer.epsilon)

    def penalty_gradient(compute, dtype):
        x = tf.constant(values, dtype)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                outputs = tf.reshape(compute(x), [len(values), -1])
                score = tf.tanh(outputs @ tf.cast(weights[: outputs.shape[1]], dtype))
            penalty = tf.reduce_mean(tf.norm(tf.reshape(inner.gradient(score, x), [len(values), -1]), axis=1) ** 2)
        return outer.gradient(penalty, x)

    model = keras.Sequential([keras.Input(values.shape[1:]), layer])
    with fused_kernels(model):
        found = tf.function(lambda: penalty_gradient(lambda x: model(x, training=True), tf.float32))()
    assert distances([np.asarray(found)], [np.asarray(penalty_gradient(written_out, tf.float64))])[0] <= 1e-5
