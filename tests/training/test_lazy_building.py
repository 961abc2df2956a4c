"""Models that Keras builds while tracing their custom step give the same results with and without a strategy."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replica_models import X, assert_equal, batches, scope_of, trained

from tfaccel.errors import PlanError
from tfaccel.training.evaluate import evaluate
from tfaccel.training.fit import fit

pytestmark = pytest.mark.usefixtures("logical_devices")


class WithoutCall(keras.Model):
    """An autoencoder with submodels and a `train_step` but no `call`."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = keras.layers.Dense(4), keras.layers.Dense(6)
        self.tracker = keras.metrics.Mean(name="loss")
        self.compile(keras.optimizers.Adam(0.05))

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.reduce_sum((self.decoder(self.encoder(data)) - data) ** 2, axis=1))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


class UsesCompiledLoss(keras.Model):
    """Calls the compiled loss itself, on data without targets, and overrides `metrics`."""

    def __init__(self, loss):
        super().__init__()
        self.network = keras.Sequential([keras.layers.Dense(6)])
        self.tracker = keras.metrics.Mean(name="noise_loss")
        self.compile(optimizer=keras.optimizers.SGD(0.05), loss=loss)

    @property
    def metrics(self):
        return [self.tracker]

    def _loss_of(self, images, training):
        loss = self.loss(2 * images, self.network(images, training=training))
        self.tracker.update_state(loss)
        return loss

    def train_step(self, images):
        with tf.GradientTape() as tape:
            loss = self._loss_of(images, training=True)
        gradients = tape.gradient(loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, images):
        self._loss_of(images, training=False)
        return {metric.name: metric.result() for metric in self.metrics}


MODELS = {
    "without call": WithoutCall,
    "compiled loss that is a mean": lambda: UsesCompiledLoss(keras.losses.MeanSquaredError()),
    "compiled loss that has a value for each row": lambda: UsesCompiledLoss(keras.losses.mean_absolute_error),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_numbers_are_kerass(name):
    make = MODELS[name]
    options = {} if make is WithoutCall else {"validation_data": batches(X[:9])}
    wanted = trained(make, 0, batches(X), **options)
    assert_equal(trained(make, 1, batches(X), exact_kernels=True, **options), wanted, rel=0)
    assert_equal(trained(make, 2, batches(X), **options), wanted)


class ReadsValues(WithoutCall):
    def __init__(self):
        super().__init__()
        self.compile(keras.optimizers.Adam(0.05), run_eagerly=True)

    def train_step(self, data):
        self.encoder(data).numpy()
        return super().train_step(data)


def test_a_step_that_cannot_be_traced_says_what_to_do():
    with pytest.raises(PlanError, match=r"ReadsValues.train_step could not be traced.*inside the strategy's scope"):
        trained(ReadsValues, 2, batches(X))


class Fails(WithoutCall):
    """Fails on any rows, after its layers are built."""

    def train_step(self, data):
        return super().train_step(self.decoder(self.encoder(data)) @ tf.ones((5, 3)))


class ReadsNumbers(WithoutCall):
    def train_step(self, data):
        self.decoder(self.encoder(data))
        return super().train_step(data * self.factor)


@pytest.mark.parametrize(
    ("make", "kind", "match"), [(Fails, ValueError, "Dimensions must"), (ReadsNumbers, AttributeError, "'factor'")]
)
def test_a_step_that_fails_on_one_device_too_fails_alike(make, kind, match):
    for number in (0, 2):
        with pytest.raises(kind, match=match) as caught:
            trained(make, number, batches(X))
        assert not isinstance(caught.value, PlanError)


class WatchesValues(WithoutCall):
    """Watches the variables themselves, which have no handle outside of the replicas."""

    def train_step(self, data):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            outputs = self.decoder(self.encoder(data))
            tape.watch([weight.value for weight in self.trainable_weights])
            loss = tf.reduce_mean((self.decoder(self.encoder(data)) - outputs + outputs - data) ** 2)
        gradients = tape.gradient(loss, [weight.value for weight in self.trainable_weights])
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def test_a_step_that_watches_values_is_built():
    assert_equal(trained(WatchesValues, 2, batches(X)), trained(WatchesValues, 0, batches(X)))


class DrawsRandom(WithoutCall):
    """Draws from `tf.random`, whose state lives in the graph, and from Keras's global generator."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def train_step(self, data):
        logs = super().train_step(data)
        first = tf.random.normal((tf.shape(data)[0],))[0]
        return {**logs, "stateful": first, "shared": keras.random.normal((2,))[0]}


class Keep(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append([float(logs["stateful"]), float(logs["shared"])])


@pytest.mark.slow
def test_random_numbers_are_kerass_and_follow_no_window():
    of_keras, of_tfaccel, of_two = Keep(), Keep(), Keep()
    wanted = trained(DrawsRandom, 0, batches(X), callbacks=[of_keras])
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    arguments = {"epochs": 2, "shuffle": False, "verbose": 0, "exact_kernels": True}
    history = fit(DrawsRandom(), batches(X), callbacks=[of_tfaccel], **arguments).history
    assert history == wanted[0] and of_tfaccel.seen == of_keras.seen
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    assert fit(DrawsRandom(), batches(X), **arguments).history == wanted[0]
    trained(DrawsRandom, 2, batches(X), callbacks=[of_two])
    assert len(np.unique(of_two.seen)) == np.size(of_two.seen)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_keras_seed_generator_that_a_failed_trace_has_left_without_a_value_is_made_again(num_replicas):
    @tf.function
    def failing():
        keras.random.normal((2,))
        raise RuntimeError

    keras.backend.clear_session()
    with pytest.raises(RuntimeError):
        failing()
    with scope_of(num_replicas):
        model = DrawsRandom()
    kept = Keep()
    fit(model, batches(X), shuffle=False, verbose=0, callbacks=[kept])
    assert len({shared for _, shared in kept.seen}) == len(kept.seen) == 3


def test_a_sequential_of_batches_of_fixed_size_is_split_over_replicas():
    data = tf.data.Dataset.from_tensor_slices((X[:16], X[:16, :1])).batch(8, drop_remainder=True)
    found = []
    for devices in (["CPU:0"], ["CPU:0", "CPU:1"]):
        keras.utils.set_random_seed(0)
        with tf.distribute.MirroredStrategy(devices).scope():
            model = keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        found.append(fit(model, data, epochs=2, verbose=0, shuffle=False).history["loss"])
        found.append(evaluate(model, X[:6], X[:6, :1], batch_size=6, verbose=0))  # and of another size
    assert found[2] == pytest.approx(found[0], rel=1e-6)
    assert found[3] == pytest.approx(found[1], rel=1e-6)


def test_a_step_that_creates_slots_and_metrics_is_traced_no_more_often_than_by_keras():
    """TensorFlow traces a step once more if it creates variables."""
    traces = []

    class OwnStep(keras.Model):
        def train_step(self, data):
            traces.append(data)
            x, y = data
            with tf.GradientTape() as tape:
                outputs = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=outputs)
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return self.compute_metrics(x, y, outputs)

    def num_traces(way):
        traces.clear()
        inputs = keras.Input((3,))
        model = OwnStep(inputs, keras.layers.Dense(1)(inputs))
        model.compile("adam", "mse", metrics=["mae"])
        way(model, np.ones((8, 3)), np.ones((8, 1)), batch_size=4, epochs=2, verbose=0)
        return len(traces)

    assert num_traces(fit) <= num_traces(keras.Model.fit) == 2


class AppliesAnotherOptimizer(WithoutCall):
    """The compiled optimizer is never used, so that the first step does not build it."""

    def __init__(self):
        super().__init__()
        self.other = keras.optimizers.SGD(0.05)
        self.encoder.build((None, 6))
        self.decoder.build((None, 4))

    def call(self, inputs):
        return self.decoder(self.encoder(inputs))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.decoder(self.encoder(data)) - data) ** 2)
        self.other.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def test_a_compiled_optimizer_that_no_step_uses():
    assert_equal(trained(AppliesAnotherOptimizer, 2, batches(X)), trained(AppliesAnotherOptimizer, 0, batches(X)))
