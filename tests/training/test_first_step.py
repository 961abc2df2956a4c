"""The first step under several replicas is compared with one device's: equal, made equal, or refused by name."""

import functools
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from replica_models import assert_equal, scope_of, trained

from tfaccel.errors import CoupledRowsError
from tfaccel.training.evaluate import evaluate
from tfaccel.training.fit import fit
from tfaccel.training.private.private_random import SEED_STRIDE
from tfaccel.training.proof.differences import Tolerance, difference
from tfaccel.training.proof.one_device import reversed_rows
from tfaccel.training.steps.engine import get_engine
from tfaccel.training.steps.replica_state import seed_variables

pytestmark = pytest.mark.usefixtures("logical_devices")

RNG = np.random.default_rng(0)
X, LABELS = RNG.normal(size=(21, 6)).astype("float32"), RNG.integers(0, 3, 21)
TOKENS = RNG.integers(0, 10, (21, 12))
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
layers = keras.layers


class CountsRows(layers.Layer):
    """Counts training rows in a weight, as codebooks, queues and class counts do."""

    def build(self, shape):
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def call(self, x, training=False):
        if training:
            self.seen.assign(self.seen + keras.ops.cast(keras.ops.shape(x)[0], "float32"))
        return x


class OwnModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)
        self.compile(keras.optimizers.SGD(0.1))

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, self(x), from_logits=True))
        self.update(tape.gradient(loss, self.trainable_variables))
        return {"loss": loss}


class MovesWeights(OwnModel):
    def update(self, gradients):
        for variable, gradient in zip(self.trainable_variables, gradients, strict=True):
            variable.assign_sub(0.05 * gradient)


class ClipsByHand(OwnModel):
    def update(self, gradients):
        clipped, _ = tf.clip_by_global_norm(gradients, 0.1)
        self.optimizer.apply(clipped, self.trainable_variables)


class AdaptsOuterVariable(OwnModel):
    """Reads and writes a variable that the model does not track."""

    def update(self, gradients):
        scale().assign(0.9 * scale() + 0.1 * tf.norm(gradients[0]))
        self.optimizer.apply([gradient / scale() for gradient in gradients], self.trainable_variables)


@functools.cache
def scale():
    return tf.Variable(1.0, name="scale")


def counting():
    model = keras.Sequential([keras.Input((6,)), CountsRows(name="counts"), layers.Dense(3)])
    model.compile("sgd", CROSS_ENTROPY)
    return model


REFUSED = {
    "rows are counted": (
        counting,
        r"counts/seen is assigned .* in 1 variable \(\w*/counts/seen\), by up to 0\.5",
    ),
    "weights are moved by hand": (MovesWeights, r"2 variables \(.*/kernel.*\) and logs \(loss\)|2 variables"),
    "gradients are clipped by hand": (ClipsByHand, r"`global_clipnorm`"),
    "an outer variable is moved": (AdaptsOuterVariable, r"scale"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_differs_is_named_and_nothing_has_changed(name):
    make, message = REFUSED[name]
    scale().assign(1.0)
    keras.utils.set_random_seed(0)
    with scope_of(2):
        model = make()
        model(X[:1])
    before = [value.copy() for value in model.get_weights()]
    with pytest.raises(CoupledRowsError, match=message) as caught:
        fit(model, X, LABELS, batch_size=8, verbose=0)
    assert "2 replicas, each of which sees only its own rows" in str(caught.value)
    assert all(map(np.array_equal, before, model.get_weights()))
    assert int(model.optimizer.iterations.numpy()) == 0
    assert float(scale().numpy()) == 1.0
    assert fit(model, X, LABELS, batch_size=8, verbose=0, check_rows=False).history["loss"]
    scale().assign(1.0)


class Positions(layers.Layer):
    """Adds the embeddings of positions, whose number is written in different ways."""

    def __init__(self, indices):
        super().__init__()
        self._indices = indices
        self.tokens, self.positions = layers.Embedding(10, 4), layers.Embedding(12, 4)

    def build(self, shape):
        self.order = self.add_weight(shape=(12,), dtype="int32", initializer="zeros", trainable=False, name="order")
        self.order.assign(np.arange(12))

    def call(self, x):
        embedded = self.tokens(x)
        return embedded + self.positions(self._indices(x, embedded, self.order.value))

    def compute_output_shape(self, shape):
        return (*shape, 4)


INDICES = {
    "second size": lambda x, embedded, order: tf.range(tf.shape(x)[1]),
    "last size": lambda x, embedded, order: tf.range(tf.shape(x)[-1]),
    "unstacked sizes": lambda x, embedded, order: tf.range(tf.unstack(tf.shape(x))[1]),
    "size of an output": lambda x, embedded, order: tf.range(tf.shape(embedded)[-2]),
    "a variable": lambda x, embedded, order: order,
}


@pytest.mark.parametrize(
    "name", ["last size", *[pytest.param(n, marks=pytest.mark.slow) for n in INDICES if n != "last size"]]
)
@pytest.mark.parametrize("num_replicas", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("epsilon", [1e-7, 1.0])  # beside a large one, the weights hardly show what the slots do
def test_position_embeddings_are_those_of_one_device_however_they_are_written(name, num_replicas, epsilon):
    """One device has one gradient for each position; those of the replicas are summed, not listed one by one."""

    def make():
        model = keras.Sequential([Positions(INDICES[name]), layers.Dense(10)])
        model.compile(keras.optimizers.Adam(0.05, epsilon=epsilon), CROSS_ENTROPY)
        return model

    data = tf.data.Dataset.from_tensor_slices((TOKENS, TOKENS)).batch(8)
    assert_equal(trained(make, num_replicas, data), trained(make, 0, data))


class SmallPositions(Positions):
    def call(self, x):
        embedded = self.tokens(x)
        return embedded + 1e-3 * self.positions(self._indices(x, embedded, self.order.value))


def test_small_gradients_of_positions_are_summed_though_a_large_epsilon_hides_them():
    """Beside the gradients of the other weights, the squares of theirs are nothing."""
    data, slots = tf.data.Dataset.from_tensor_slices((TOKENS, TOKENS)).batch(8), []
    for num_replicas in (0, 2):
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        with scope_of(num_replicas):
            model = keras.Sequential([SmallPositions(INDICES["a variable"]), layers.Dense(10)])
            model.compile(keras.optimizers.Adam(0.05, epsilon=1.0), CROSS_ENTROPY)
        run = fit if num_replicas else keras.Model.fit
        run(model, data, epochs=2, shuffle=False, verbose=0)
        slots.append({v.path: v.numpy() for v in model.optimizer.variables if "positions" in v.path})
    one, many = slots
    assert [name for name in one if "velocity" in name]
    for name, value in one.items():
        np.testing.assert_allclose(many[name], value, rtol=1e-3, atol=1e-4 * np.abs(value).max())


class CountsEvaluatedRows(CountsRows):
    def call(self, x, training=False):
        return super().call(x, training=not training)


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, keras.optimizers.RMSprop])
def test_a_dense_layer_of_sparse_inputs_is_that_of_one_device(optimizer):
    """Its gradient on one device has one slice for each column that has entries in the batch."""
    x = np.where(RNG.random((21, 50)) < 0.1, 1.0, 0.0).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x), LABELS)).batch(8)

    def make():
        model = keras.Sequential([keras.Input((50,), sparse=True), layers.Dense(4), layers.Dense(3)])
        model.compile(optimizer(0.01), CROSS_ENTROPY)
        return model

    assert_equal(trained(make, 2, data), trained(make, 0, data))


def test_a_refused_evaluation_takes_back_nothing_that_training_has_proven():
    """Position embeddings were merged for training; an evaluation that differs must leave them so."""

    def two_fits(num_replicas):
        keras.utils.set_random_seed(0)
        with scope_of(num_replicas):
            model = keras.Sequential([Positions(INDICES["last size"]), CountsEvaluatedRows(), layers.Dense(10)])
            model.compile(keras.optimizers.Adam(0.05), CROSS_ENTROPY)
        data = tf.data.Dataset.from_tensor_slices((TOKENS, TOKENS)).batch(8)
        fit(model, data, shuffle=False, verbose=0)
        if num_replicas:
            with pytest.raises(CoupledRowsError, match="seen"):
                evaluate(model, data, verbose=0)
        fit(model, data, shuffle=False, epochs=3, verbose=0)
        return model.get_weights()

    for many, one in zip(two_fits(2), two_fits(0), strict=True):
        np.testing.assert_allclose(many, one, atol=1e-4)


def test_the_proof_is_logged_and_kept_and_changes_nothing(caplog):
    def make():
        model = keras.Sequential([keras.Input((6,)), layers.Dense(4), layers.Dropout(0.5), layers.Dense(3)])
        model.compile("adam", CROSS_ENTROPY, metrics=["accuracy"])
        return model

    found = []
    for check_rows in (False, True):
        keras.utils.set_random_seed(0)
        with scope_of(2):
            model = make()
        with caplog.at_level(logging.INFO, logger="tfaccel"):
            history = fit(model, X, LABELS, batch_size=8, epochs=2, verbose=0, check_rows=check_rows).history
        found.append((history, model.get_weights()))
    proof = get_engine(model).checks.proofs["train"]
    assert (proof.holds, proof.num_replicas, proof.num_rows, proof.num_variables) == (True, 2, 8, 14)
    assert [text for text in caplog.messages if "=" in text] == [str(proof)]
    assert str(proof).startswith(
        "training: 2 replicas = 1 device on a step of 8 rows: 14 variables, largest difference "
    )
    assert found[0][0] == found[1][0]
    assert all(map(np.array_equal, found[0][1], found[1][1]))


def test_fused_attention_under_adam_is_no_difference():
    """Its rounding differs from that of Keras's operations, and Adam makes up to a tenth of a step of it."""

    def make():
        tokens = keras.Input((16,), dtype="int32")
        x = layers.Embedding(50, 32)(tokens)
        for _ in range(2):
            y = layers.LayerNormalization()(x)
            x = layers.Add()([x, layers.MultiHeadAttention(4, 8)(y, y)])
            x = layers.Add()([x, layers.Dense(32, activation="gelu")(layers.LayerNormalization()(x))])
        model = keras.Model(tokens, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))
        model.compile(keras.optimizers.Adam(1e-3), CROSS_ENTROPY, metrics=["accuracy"])
        return model

    for seed in range(3):
        keras.utils.set_random_seed(seed)
        with scope_of(2):
            model = make()
        rows = np.random.default_rng(seed).integers(0, 50, (32, 16))
        fit(model, rows, rows[:, 0] % 3, batch_size=32, verbose=0)
        assert get_engine(model).checks.proofs["train"].holds


def test_fit_in_the_scope_of_the_strategy_is_compared_with_one_device_outside_of_it():
    """Keras divides losses by the number of replicas in a scope."""
    with scope_of(2):
        model = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
        model.compile(keras.optimizers.Adam(0.01, clipnorm=0.5), CROSS_ENTROPY, metrics=["accuracy"])
        fit(model, X, LABELS, batch_size=8, sample_weight=np.arange(21) / 7, verbose=0)
        assert get_engine(model).checks.proofs["train"].holds
        coupled = keras.Sequential([keras.Input((6,)), layers.Lambda(lambda x: x - x[:1]), layers.Dense(3)])
        coupled.compile("sgd", CROSS_ENTROPY)
        with pytest.raises(CoupledRowsError, match=r"Layer .lambda. .Lambda. mixes the rows"):
            fit(coupled, X, LABELS, batch_size=8, verbose=0)


def ranks(y, outputs, **kwargs):
    """The correlation of targets and predictions, by ranks, computed by NumPy."""

    def correlation(targets, predicted):
        return np.corrcoef(targets.ravel(), predicted[:, 0].argsort().argsort())[0, 1].astype("float32")

    return tf.ensure_shape(tf.numpy_function(correlation, [y, outputs], tf.float32, **kwargs), [])


def to_the_mean(y, outputs):
    """A loss whose Python code takes the mean over all rows."""
    centred = tf.py_function(lambda values: values - tf.reduce_mean(values, 0), [outputs], tf.float32)
    return tf.reduce_mean(tf.ensure_shape(centred, [None, 3]) ** 2, axis=-1)


@pytest.mark.parametrize("is_pure", [False, True])
def test_losses_and_metrics_that_call_python_are_those_of_one_device(is_pure, caplog):
    """A proof would call it once more: they get the rows of all replicas without one."""

    def fitted(replicas):
        keras.utils.set_random_seed(1)
        with scope_of(replicas):
            model = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
            pure = {"stateful": False} if is_pure else {}
            metric = keras.metrics.MeanMetricWrapper(lambda *given: ranks(*given, **pure), name="ranks")
            model.compile("sgd", CROSS_ENTROPY if is_pure else to_the_mean, metrics=[metric])
        options = {"validation_data": (X[:6], LABELS[:6]), "batch_size": 8, "epochs": 2, "verbose": 0}
        history = fit(model, X, LABELS, **options) if replicas else model.fit(X, LABELS, **options, shuffle=True)
        return history.history

    with caplog.at_level(logging.INFO, logger="tfaccel"):
        many = fitted(2)
    said = "one step could not be compared with one device: it calls Python code while it runs"
    assert (said in " ".join(caplog.messages)) != is_pure
    one = fitted(0)
    assert {name: pytest.approx(values, rel=1e-5) for name, values in one.items()} == many


def test_a_step_that_cannot_be_compared_is_said_and_trains(caplog):
    class Calls(layers.Layer):
        def call(self, x):
            return x + tf.ensure_shape(tf.numpy_function(lambda rows: 0 * rows, [x], tf.float32), [None, 6])

    with scope_of(2):
        model = keras.Sequential([keras.Input((6,)), Calls(), layers.Dense(3)])
        model.compile("sgd", CROSS_ENTROPY)
    with caplog.at_level(logging.INFO, logger="tfaccel"):
        fit(model, X, LABELS, batch_size=8, verbose=0)
    assert "training: one step could not be compared with one device: it calls Python code while it runs" in (
        " ".join(caplog.messages)
    )


def test_rounding_is_no_difference_and_a_fault_in_few_elements_is():
    exact, before = Tolerance(1e-4, 1e-5), np.zeros(1000)
    one = np.full(1000, 0.001)
    noisy = one.copy()
    noisy[:3] *= -1  # what Adam makes of a gradient that is nothing but rounding
    assert difference(before, one, noisy, noisy, exact, has_slots=True) == (False, 0.0)
    assert difference(before, one, noisy, noisy, exact, has_slots=False)[0]
    wrong = one.copy()
    wrong[500:520] *= 1.01
    assert difference(before, one, noisy, wrong, exact, has_slots=False)[0]  # as it is of the slots
    assert difference(before, one, noisy, one * 1.03, exact, has_slots=True)[0]
    assert not difference(before, one, one, one + np.linspace(0, 1e-5, 1000), exact, has_slots=True)[0]
    assert difference(before, one, one * (1 + 1e-7), one * (1 + 1e-6), exact, has_slots=False)[0] is False
    assert difference(before, one, one, one * 1.002, exact, has_slots=False)[0]
    counts = np.array([4, 5])
    assert difference(counts, counts, counts, counts + 1, exact, has_slots=False) == (True, 1.0)


def test_fused_batch_normalization_by_replica_is_left_out():
    """Its statistics are meant to be those of a replica; fused kernels must not bring it back into training mode."""
    with scope_of(2):
        model = keras.Sequential([keras.Input((6,)), layers.Dense(8), layers.BatchNormalization(), layers.Dense(3)])
        model.compile("adam", CROSS_ENTROPY)
    fit(model, X, LABELS, batch_size=8, verbose=0)
    assert get_engine(model).checks.proofs["train"].holds


def test_a_table_whose_rows_are_noted_for_the_next_step_is_compared(caplog):
    """Adam's kernel notes which rows of a large table have a gradient; their number changes from step to step."""
    with scope_of(2):
        model = keras.Sequential([keras.Input((3,)), layers.Embedding(5000, 2), layers.Flatten(), layers.Dense(3)])
        model.compile(keras.optimizers.Adam(0.01), CROSS_ENTROPY)
    rows = np.random.default_rng(0).integers(0, 5000, (24, 3))
    fit(model, rows, rows[:, 0] % 3, batch_size=16, epochs=2, shuffle=False, verbose=0)
    proof = get_engine(model).checks.proofs["train"]
    assert proof.holds and proof.num_steps > 1, proof
    assert not [text for text in caplog.messages if "could not be compared" in text]


class Growing(keras.Model):
    """Keeps something of each step in a variable that grows."""

    def build(self, shape):
        self.dense, self.kept = layers.Dense(3), tf.Variable([0.0], shape=[None], trainable=False)
        self.dense.build(shape)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        kept = tf.shape(data[0])[:1] if self.keeps_rows else tf.ones([1], tf.int32)
        kept = tf.repeat(tf.cast(kept, tf.float32), kept)
        self.kept.assign(tf.concat([self.kept, kept], axis=0))
        return super().train_step(data)


@pytest.mark.parametrize("keeps_rows", [False, True])
def test_a_variable_that_grows_is_compared(keeps_rows):
    with scope_of(2):
        model = Growing()
        model.keeps_rows = keeps_rows
        model.build((None, 6))
        model.compile("sgd", CROSS_ENTROPY)
    if keeps_rows:
        with pytest.raises(CoupledRowsError, match="Variable"):
            fit(model, X[:16], LABELS[:16], batch_size=8, verbose=0)
        assert model.kept.shape == [None] and len(model.kept.numpy()) == 1
        return
    fit(model, X[:16], LABELS[:16], batch_size=8, verbose=0)
    assert get_engine(model).checks.proofs["train"].holds
    assert len(model.kept.numpy()) == 3


def test_rows_are_reversed_in_each_share():
    dense = tf.reshape(tf.range(10), (5, 2))
    batch = {
        "dense": dense,
        "ragged": tf.RaggedTensor.from_tensor(dense),
        "sparse": tf.sparse.from_dense(dense),
        "number": tf.constant(3),
    }
    for num_shares, order in ((1, [4, 3, 2, 1, 0]), (2, [2, 1, 0, 4, 3])):
        found = reversed_rows(batch, num_shares)
        assert found["dense"].numpy().tolist() == dense.numpy()[order].tolist()
        assert found["ragged"].to_list() == dense.numpy()[order].tolist()
        assert tf.sparse.to_dense(found["sparse"]).numpy().tolist() == dense.numpy()[order].tolist()
        assert found["number"] == 3


def test_a_model_trains_again_after_its_seeds_were_set():
    """`set_random_seed` drops Keras's global seed generator, and the next random number makes another one."""
    with scope_of(2):
        model = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
        model.compile("sgd", CROSS_ENTROPY)
    for seed in (1, 2):
        keras.utils.set_random_seed(seed)
        keras.random.uniform(())
        fit(model, X, LABELS, batch_size=8, verbose=0)
        state = seed_variables(model)[-1].value
        local = model.distribute_strategy.experimental_local_results(state)
        first, second = (int(one.numpy()[0]) for one in local)
        assert second - first == SEED_STRIDE
