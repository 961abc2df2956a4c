"""Plan field `rematerialization`: the same training with less memory, or a refusal that names the layer."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfaccel import Plan, fit
from tfaccel.errors import PlanError
from tfaccel.training.fit import plan_of_model
from tfaccel.training.steps.rematerialized import get_blocks, recomputed_blocks, rematerialize

pytestmark = pytest.mark.usefixtures("logical_devices")


@keras.saving.register_keras_serializable("tests")
class Attending(layers.Layer):
    """Attention and a dense layer that take `training` and the mask from the call's context, not as arguments."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(2, 4, dropout=0.3)
        self.norm = layers.LayerNormalization()
        self.drop = layers.Dropout(0.4)
        self.supports_masking = True

    def build(self, shape):
        self.attention.build(shape, shape)
        self.norm.build(shape)

    def call(self, x):
        return self.norm(x + self.drop(self.attention(x, x)))


def token_model():
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(7, 8, mask_zero=True)(inputs)
    x = layers.Dense(8, activation="gelu")(Attending(name="first")(x))
    x = layers.GlobalAveragePooling1D()(Attending()(x))
    x = layers.BatchNormalization()(x)
    return keras.Model(inputs, layers.Dense(1, dtype="float32")(x))


def trained(recomputes, *, strategy=None, jit_compile=False, dtype_policy="float32", fused=False):
    keras.utils.set_random_seed(3)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype_policy)
    try:
        with (strategy or tf.distribute.get_strategy()).scope():
            model = token_model()
            model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit_compile)
    finally:
        keras.config.set_dtype_policy(before)
    x = np.random.default_rng(0).integers(0, 7, (32, 6))
    fields = {"synchronize_batch_norm": False, "rematerialization": recomputes, "fused_kernels": fused}
    plan = plan_of_model(model, batch_size=8, **fields)
    fit(model, x, x[:, :1] * 0.3, epochs=2, verbose=0, plan=plan)
    return [weight.astype("float64") for weight in model.get_weights()], model


def distance(some, others):
    return max(np.abs(a - b).max() for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("num_replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_training_is_the_same(num_replicas):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]) if num_replicas == 2 else None
    fused = num_replicas == 2
    (plain, _), (recomputed, model) = (trained(one, strategy=strategy, fused=fused) for one in (False, True))
    assert distance(plain, recomputed) < 1e-5
    seeds = [variable for variable in model.variables if "seed" in variable.path]
    assert seeds
    assert "call" not in vars(model.get_layer("first"))  # only the traced graph is another one


@pytest.mark.slow
def test_training_is_the_same_under_xla():
    (plain, _), (recomputed, _) = (trained(one, jit_compile=True) for one in (False, True))
    assert distance(plain, recomputed) < 1e-5


@pytest.mark.slow
def test_low_precision_is_as_near_to_float32_as_without():
    exact, _ = trained(False)
    (plain, _), (recomputed, _) = (trained(one, dtype_policy="mixed_bfloat16") for one in (False, True))
    assert distance(recomputed, exact) < 1.5 * distance(plain, exact)


def gradients(model, x, recomputes):
    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    if not recomputes:
        return step()
    with recomputed_blocks(model):
        return step()


def test_each_block_runs_again_for_its_gradient():
    calls = []

    class Counted(layers.Dense):
        def call(self, inputs):
            calls.append(self.name)
            return super().call(inputs)

    model = keras.Sequential([keras.Input((4,)), Counted(4, name="a"), Counted(4, name="b")])
    x = tf.ones((2, 4))
    calls.clear()
    plain = gradients(model, x, recomputes=False)
    assert calls == ["a", "b"]
    calls.clear()
    recomputed = gradients(model, x, recomputes=True)
    assert calls == ["a", "b", "b", "a"]
    for one, other in zip(plain, recomputed, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_blocks_are_layers_with_weights_and_no_state_but_seeds():
    frozen = layers.Dense(4, trainable=False)
    found = [layers.Dense(4), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.1), frozen]
    regularized = layers.Dense(4, activity_regularizer="l2")
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(90), layers.Dense(4)])
    model = keras.Sequential([keras.Input((4,)), *found, regularized, inner])
    assert get_blocks(model) == [found[0], frozen, *inner.layers]


@pytest.mark.parametrize("kind", ["functional", "sequential", "with a call of its own"])
def test_a_backbone_counts_as_its_own_layers(kind):
    inner = [layers.Conv2D(4, 3, name="one"), layers.BatchNormalization(), layers.Conv2D(4, 3, name="two")]
    backbone = keras.Sequential([keras.Input((8, 8, 2)), *inner])
    if kind == "functional":
        backbone = keras.Model(backbone.inputs[0], backbone.outputs[0])
    inputs, last = keras.Input((8, 8, 2)), layers.Dense(1, name="last")
    model = keras.Model(inputs, last(backbone(inputs)))
    if kind == "with a call of its own":
        call = backbone.call
        backbone.call = lambda x, training=None, mask=None: 2.0 * call(x, training=training, mask=mask)
    wanted = ["last"] if kind == "with a call of its own" else ["one", "two", "last"]
    assert [block.name for block in get_blocks(model)] == wanted


class Biased(layers.Layer):
    """Adds rows of a table, some of them several times, and a weight through which no gradient flows."""

    def build(self, shape):
        names = {"kernel": (shape[-1], 4), "table": (2, 4), "held": (shape[-1], 4)}
        self.kernel, self.table, self.held = (self.add_weight(name=name, shape=size) for name, size in names.items())

    def call(self, x):
        rows = keras.ops.take(self.table, [0, 0, 1, 1, 1, 0], axis=0)
        return x @ self.kernel + keras.ops.stop_gradient(x @ self.held) + rows


def test_gradients_of_repeated_rows_and_of_weights_without_any_are_kerass():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4), Biased()])
    plain, recomputed = (gradients(model, tf.ones((6, 4)), recomputes=one) for one in (False, True))
    assert [gradient is None for gradient in recomputed] == [False, False, False, False, True]
    for one, other in zip(plain[:4], recomputed[:4], strict=True):
        assert type(one) is type(other)
        for values, others in zip(tf.nest.flatten(one, True), tf.nest.flatten(other, True), strict=True):
            np.testing.assert_allclose(values, others, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plan field", "rematerialize"])
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_repeated_rows_and_weights_without_gradients_are_updated_as_by_keras(way):
    def weights_after(recomputes):
        keras.utils.set_random_seed(3)
        block = keras.Sequential([keras.Input((4,)), layers.Dense(4), Biased()])
        model = keras.Sequential([keras.Input((4,)), block, layers.Dense(1)])
        model.compile(keras.optimizers.AdamW(0.1, weight_decay=0.5), "mse")
        x = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
        if recomputes and way == "rematerialize":
            rematerialize(block)
        plan = plan_of_model(model, batch_size=6, rematerialization=recomputes and way == "plan field")
        fit(model, x, x[:, :1], epochs=2, verbose=0, shuffle=False, plan=plan)
        return model.get_weights()

    assert distance(weights_after(True), weights_after(False)) < 1e-6


def test_blocks_may_return_none():
    class Pair(layers.Dense):
        def call(self, x):
            return super().call(x), None

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.pair, self.last = Pair(4, "tanh"), layers.Dense(1)

        def call(self, x):
            found, nothing = self.pair(x)
            assert nothing is None
            return self.last(found)

    model = Model()
    model(tf.ones((2, 4)))
    plain, recomputed = (gradients(model, tf.ones((2, 4)), recomputes=one) for one in (False, True))
    for one, other in zip(plain, recomputed, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_second_derivatives_of_recomputed_blocks():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4, "tanh"), layers.Dense(1)])

    @tf.function(autograph=False)
    def penalty_gradients(x):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = model(x, training=True)
            penalty = tf.reduce_sum(inner.gradient(y, x) ** 2)
        return outer.gradient(penalty, model.trainable_variables[0].value)

    x = tf.constant(np.random.default_rng(0).normal(size=(3, 4)).astype("float32"))
    plain = penalty_gradients(x)
    with recomputed_blocks(model):
        found = tf.function(penalty_gradients.python_function, autograph=False)(x)
    np.testing.assert_allclose(found, plain, rtol=1e-5)


class Odd(layers.Dense):
    """A layer whose second run would differ from its first."""

    def __init__(self, kind):
        super().__init__(4, name=f"odd_{kind}")
        self.kind = kind

    def call(self, inputs):
        if self.kind == "noise":
            inputs = inputs + tf.random.normal(tf.shape(inputs))
        if self.kind == "shared_seeds":
            inputs = inputs + keras.random.normal(tf.shape(inputs))
        if self.kind == "loss":
            self.add_loss(tf.reduce_mean(inputs))
        return super().call(inputs)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("noise", "runs the stateful operation RandomStandardNormal"),
        ("shared_seeds", "draws random numbers from a seed generator that is not its own"),
        ("loss", "adds a loss"),
    ],
)
def test_layer_that_cannot_be_repeated_is_refused(kind, problem):
    model = keras.Sequential([keras.Input((4,)), Odd(kind)])
    with pytest.raises(PlanError, match=rf"Layer 'odd_{kind}' \(Odd\) cannot be recomputed .*{problem}\. Use remat"):
        gradients(model, tf.ones((2, 4)), recomputes=True)


def test_model_that_cannot_be_recomputed_is_refused():
    class Own(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    without = keras.Sequential([keras.Input((4,)), layers.ReLU(), layers.BatchNormalization()], name="without")
    for model, problem in (
        (without, "Model 'without' has no layer that can be recomputed"),
        (Own(), "Own has its own"),
    ):
        with pytest.raises(PlanError, match=problem), recomputed_blocks(model):
            pass
    with pytest.raises(PlanError, match="`rematerialization` is not supported on TPUs"):
        Plan(strategy="tpu", devices=("TPU:0",), tpu="local", global_batch_size=8, rematerialization=True)


PEAK = """
import os, sys, json
import keras, numpy as np, tfaccel
from tfaccel.training.fit import plan_of_model
keras.utils.set_random_seed(0)
hidden = [keras.layers.Dense(256, activation="gelu") for _ in range(12)]
model = keras.Sequential([keras.Input((256,)), *hidden, keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((2048, 256), "float32")
plan = plan_of_model(model, batch_size=2048, rematerialization=sys.argv[1] == "on")
try:
    print(json.dumps(tfaccel.fit(model, x, x[:, :1], verbose=0, plan=plan).history["loss"]))
except Exception as error:
    print(json.dumps(type(error).__name__))
"""


@pytest.mark.slow
def test_a_batch_fits_into_less_memory(run_python):
    env = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_MKL_ALLOC_MAX_BYTES": str(90 << 20)}
    found = [json.loads(run_python(PEAK, one, env=env, fresh=True).stdout.splitlines()[-1]) for one in ("off", "on")]
    assert found[0] == "ResourceExhaustedError"
    assert np.isfinite(found[1])
