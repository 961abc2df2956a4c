"""What depends on the micro-batch is found by name; where nothing is found, the weights are those of whole batches."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfaccel import Plan, Workload, fit
from tfaccel.training.proof.micro_batches import what_depends_on_micro_batches
from tfaccel.training.run.changed_run import why_epochs_differ
from tfaccel.training.steps.replicas import Replicas

layers, losses, optimizers = keras.layers, keras.losses, keras.optimizers
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(16, 4)).astype("float32"), RANDOM.normal(size=(16, 1)).astype("float32")
TOKENS = RANDOM.integers(0, 3, size=(16, 5)).astype("int32")
WEIGHTS = RANDOM.uniform(size=16).astype("float32")


def dense(**options):
    return [keras.Input((4,)), layers.Dense(1, **options)]


class Counting(layers.Layer):
    def build(self, input_shape):
        self.seen = self.add_weight(shape=(), trainable=False, initializer="zeros", name="seen")

    def call(self, x, training=False):
        if training:
            self.seen.assign_add(1.0)
        return x * (1.0 + 0.1 * self.seen)


class Penalty(layers.Layer):
    def call(self, x):
        self.add_loss(x[:, 0] ** 2)
        return x


class OwnLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.reduce_sum(losses.MeanSquaredError(reduction="none")(y, y_pred))


class OwnApply(optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        super().apply([tf.sign(one) for one in grads], trainable_variables)


def make_model(parts, loss="mse", optimizer="sgd", kind=keras.Sequential):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(parts)
    if kind is not keras.Sequential:
        model = kind(model.inputs, model.outputs)
    model.compile(optimizers.get(optimizer), loss)
    return model


def found(model, x=X, *rest, sums_duplicates=False):
    if not model.built:
        model.build(x.shape)
    batch = tuple(tf.convert_to_tensor(part[:8]) for part in (x, *(rest or (Y,))))
    replicas = Replicas(model.distribute_strategy)
    return what_depends_on_micro_batches(model, replicas, batch, sums_duplicates=sums_duplicates)


def embedding():
    return [keras.Input((5,), dtype="int32"), layers.Embedding(3, 2), layers.Flatten(), layers.Dense(1)]


def masked(loss="mse"):
    hidden = [layers.Embedding(3, 2, mask_zero=True), layers.SimpleRNN(2, return_sequences=True)]
    return make_model([keras.Input((5,), dtype="int32"), *hidden, layers.Dense(1)], loss)


FOUND = {
    "sum": (
        lambda: make_model(dense(), losses.MeanSquaredError(reduction="sum")),
        r"loss \(mean_squared.*'sum', which is",
    ),
    "none": (lambda: make_model(dense(), losses.MeanSquaredError(reduction=None)), r"loss \(mean_squared.*'none'"),
    "own loss": (lambda: make_model(dense(), None, kind=OwnLoss), r"loss \(OwnLoss\) has reduction='none'"),
    "average": (lambda: make_model(dense(), optimizer=optimizers.SGD(use_ema=True)), r"average.*\(SGD, use_ema=True\)"),
    "parts": (
        lambda: make_model(
            dense(), optimizer=optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.SGD(use_ema=True)))
        ),
        "use_ema",
    ),
    "scale": (
        lambda: make_model(dense(), optimizer=optimizers.LossScaleOptimizer(optimizers.SGD())),
        "loss scale of mixed_float16",
    ),
    "own apply": (lambda: make_model(dense(), optimizer=OwnApply()), "OwnApply has its own apply"),
    "constraint": (lambda: make_model(dense(kernel_constraint="non_neg")), r"kernel \(NonNeg\) is applied after every"),
    "added": (lambda: make_model([*dense(), Penalty(name="penalty")]), r"one value per row \(of 'penalty'.*summed"),
    "changed": (lambda: make_model([*dense(), Counting()]), r"no optimizer trains \(.*seen\)"),
    "spectral": (
        lambda: make_model([keras.Input((4,)), layers.SpectralNormalization(layers.Dense(1))]),
        "no optimizer trains .*vector_u",
    ),
    "fixed": (lambda: make_model([keras.Input(batch_shape=(8, 4)), layers.Dense(1)]), "built for batches of 8 rows"),
    "normalized": (lambda: make_model([*dense(), layers.BatchNormalization(name="norm")]), r"normalization \(norm\)"),
    "fails": (
        lambda: make_model(dense(), lambda y, p: y.unknown),
        "could not be checked on a few rows .AttributeError",
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_depends_is_named(case):
    make, message = FOUND[case]
    model = make()
    before = model.get_weights()
    text = found(model)
    assert re.search(message, str(text)), text
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_depends_in_sequences_is_named():
    per_step = np.zeros((16, 5, 1), "float32")
    assert "a mean over the values that are not masked" in found(masked(), TOKENS, per_step)
    assert "the loss (mean_squared_error)" in found(masked(losses.MeanSquaredError(reduction="sum")), TOKENS, per_step)
    stateful = [keras.Input(batch_shape=(8, 5, 4)), layers.GRU(2, stateful=True, name="memory")]
    assert "stateful layers (memory) keep one state for each row" in found(make_model(stateful), np.zeros((8, 5, 4)))
    by_weight = losses.MeanSquaredError(reduction="mean_with_sample_weight")
    assert "a mean by sample weights" in found(make_model(dense(), by_weight), X, Y, WEIGHTS)
    assert found(make_model(dense(), by_weight)) is None
    assert found(make_model(dense()), X, Y, WEIGHTS) is None


def test_sparse_gradients_are_named_unless_they_are_summed():
    for optimizer in ("adam", optimizers.SGD(clipnorm=1.0)):
        text = found(make_model(embedding(), optimizer=optimizer), TOKENS)
        assert re.search("gradients of .*embedding.* are sparse", str(text)), text
    assert found(make_model(embedding(), optimizer="sgd"), TOKENS) is None
    assert found(make_model(embedding(), optimizer="adam"), TOKENS, sums_duplicates=True) is None


ALIKE = {
    "clipped": lambda: (dense(), "mse", optimizers.AdamW(0.1, weight_decay=0.1, global_clipnorm=0.2)),
    "regularized": lambda: (dense(activity_regularizer="l2", kernel_regularizer="l2"), "mae", optimizers.SGD(0.1)),
    "normalized": lambda: ([*dense(), layers.LayerNormalization()], "mse", optimizers.Nadam(0.1)),
    "frozen": lambda: (
        [keras.Input((4,)), layers.BatchNormalization(trainable=False), layers.Dense(1)],
        "mse",
        optimizers.SGD(0.1, momentum=0.9),
    ),
}
OTHERS = {
    "average": lambda: (dense(), "mse", optimizers.SGD(0.1, use_ema=True)),
    "constraint": lambda: (dense(kernel_constraint="non_neg"), "mse", optimizers.SGD(0.1)),
    "sum": lambda: (dense(), losses.MeanSquaredError(reduction="sum"), optimizers.SGD(0.01)),
    "embedding": lambda: (embedding(), "mse", optimizers.Adam(0.1)),
}


def trained(make, steps):
    keras.utils.set_random_seed(0)  # layers draw the seeds of their initial weights when they are made
    parts, loss, optimizer = make()
    optimizer.gradient_accumulation_steps = steps if steps > 1 else None
    model = make_model(parts, loss, optimizer)
    x = TOKENS if model.inputs[0].shape[1] == 5 else X
    text = found(model, x)
    fit(model, x, Y, sample_weight=WEIGHTS, batch_size=8 // steps, epochs=2, shuffle=False, verbose=0)
    return text, model.get_weights()


SLOW = {"clipped", "regularized", "normalized", "frozen", "average", "constraint", "sum"}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in (*ALIKE, *OTHERS)]
)
def test_what_is_found_makes_a_difference_and_nothing_else(case):
    (text, whole), (_, halves) = (trained({**ALIKE, **OTHERS}[case], steps) for steps in (1, 2))
    assert (text is None) == (case in ALIKE), text
    difference = max(np.abs(one - other).max() for one, other in zip(whole, halves, strict=True))
    assert (difference < 1e-5) == (case in ALIKE), difference


def why(make_data, **options):
    def train_data(global_batch_size, *, seed, epoch):
        return make_data(global_batch_size)

    work = Workload("rows", object, dict, train_data, global_batch_size=8, **options)
    return why_epochs_differ(work, Plan(strategy="none", devices=("CPU:0",), global_batch_size=8))


def test_epochs_that_do_not_divide_into_whole_batches_are_named():
    rows = tf.data.Dataset.range

    def generated(size):
        return rows(16).filter(lambda row: row >= 0).batch(size)

    assert why(lambda size: rows(16).batch(size)) is None
    assert why(lambda size: rows(12).batch(size)) == "an epoch of 12 rows does not divide into batches of 8"
    assert why(lambda size: rows(14).batch(size)) == "an epoch of 14 rows does not divide into batches of 8"
    assert why(lambda size: rows(18).batch(size, drop_remainder=True)) is None
    several = why(lambda size: rows(12).batch(size, drop_remainder=True))
    assert several == "an epoch has 1 batches of 8 rows, but 3 of 4"
    assert "it is not known whether an epoch divides" in why(generated)
    assert why(generated, num_train_examples=16) is None
    assert "padded to the longest" in why(lambda size: rows(16).map(tf.range).padded_batch(size))
