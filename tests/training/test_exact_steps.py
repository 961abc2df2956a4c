"""The examples of docs/guides/exact_steps.md give the weights of one device; so do sums and means over replicas."""

import re
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from replica_models import contrastive, scope_of

from tfaccel.ops import all_gather_rows, mean_over_replicas, sum_over_replicas
from tfaccel.training.fit import fit

pytestmark = pytest.mark.usefixtures("logical_devices")

PAGE = Path(__file__).parents[2] / "docs/guides/exact_steps.md"
SETUP, *EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def trained(code, num_replicas, **options):
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    names = {}
    exec(SETUP + code.partition("\ntfaccel.fit(")[0], names)
    with scope_of(num_replicas):
        model = names["build"]()
    train = fit if num_replicas else keras.Model.fit
    data = tf.data.Dataset.from_tensor_slices((names["x"], names["y"])).batch(8)
    history = train(model, data, epochs=3, shuffle=False, verbose=0, **options).history
    return history["loss"], model.get_weights()


@pytest.mark.parametrize("place", range(len(EXAMPLES)))
@pytest.mark.parametrize("num_replicas", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_examples_give_the_weights_of_one_device(place, num_replicas):
    assert len(EXAMPLES) == 5
    losses, weights = trained(EXAMPLES[place], num_replicas)
    losses_of_one, weights_of_one = trained(EXAMPLES[place], 0)
    np.testing.assert_allclose(losses, losses_of_one, rtol=1e-5)
    for one, other in zip(weights, weights_of_one, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_without_the_sums_the_examples_are_refused():
    from tfaccel.errors import CoupledRowsError

    for code in EXAMPLES:
        alone = re.sub(
            r"(all_gather_rows|mean_over_replicas|sum_over_replicas)\(", "tf.nest.map_structure(tf.identity, ", code
        )
        with pytest.raises(CoupledRowsError, match="sum_over_replicas"):
            trained(alone, 2)


def test_rows_of_any_dtype_are_gathered():
    names = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "bfloat16", "complex64")
    rows = {name: tf.cast(tf.constant([[0], [1], [3], [127]]), name) for name in names}
    rows["uint64"] = tf.constant(np.array([[0], [1], [3], [2**64 - 1]], "uint64"))

    def of_one(context):
        first = 2 * context.replica_id_in_sync_group
        return {name: value[first : first + 2] for name, value in rows.items()}

    with scope_of(2):
        strategy = tf.distribute.get_strategy()
    own = [strategy.experimental_distribute_values_from_function(of_one)]
    gather = tf.function(lambda: strategy.run(partial(tf.nest.map_structure, all_gather_rows), own), autograph=False)
    for name, value in gather().items():
        for one in strategy.experimental_local_results(value):
            assert one.dtype == rows[name].dtype
            np.testing.assert_array_equal(one, rows[name])


def test_a_loss_that_compares_uint8_classes_is_computed_from_all_rows():
    x, classes = np.random.default_rng(0).normal(size=(24, 4)).astype("float32"), np.arange(24)[:, None] % 5

    def weights(num_replicas):
        keras.utils.set_random_seed(0)
        with scope_of(num_replicas):
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
            model.compile("sgd", lambda y, z: tf.reduce_mean(contrastive(y, z)))
        (fit if num_replicas else keras.Model.fit)(model, x, classes.astype("uint8"), batch_size=8, verbose=0)
        return model.get_weights()

    for one, other in zip(weights(2), weights(0), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_on_one_device_values_are_returned_as_they_are():
    gradients = [tf.constant([1.0]), None, tf.IndexedSlices(tf.ones((1, 2)), tf.constant([1]), tf.constant([3, 2]))]
    summed = sum_over_replicas(gradients)
    assert summed[1] is None and summed[2].numpy().tolist() == [[0, 0], [1, 1], [0, 0]]
    assert mean_over_replicas({"count": tf.constant(3)})["count"].numpy() == 3


class WithItsOwnTracker(keras.Model):
    """Lists no metric but its own, so that Keras's tracker of the loss, which the step updates, is in no list."""

    def __init__(self):
        super().__init__()
        self.dense, self.tracker = keras.layers.Dense(1), keras.metrics.Mean(name="loss")

    def call(self, inputs):
        return self.dense(inputs)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        losses = keras.losses.MeanSquaredError(reduction=None)(y, y_pred)
        self.tracker.update_state(losses)
        return keras.ops.sum(losses)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {"loss": self.tracker.result()}

    @property
    def metrics(self):
        return [self.tracker]


def test_a_tracker_that_the_model_does_not_list_is_no_difference():
    x = np.random.default_rng(0).normal(size=(21, 3)).astype("float32")
    found = []
    for num_replicas in (0, 2):
        keras.utils.set_random_seed(0)
        with scope_of(num_replicas):
            model = WithItsOwnTracker()
            model.compile(keras.optimizers.SGD(0.01))
        train = fit if num_replicas else keras.Model.fit
        history = train(model, x, x[:, :1], batch_size=8, epochs=3, shuffle=False, verbose=0).history
        found.append((history["loss"], model.dense.kernel.numpy()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


REGULARIZERS = {
    "mean": lambda activities: 0.1 * tf.reduce_mean(tf.square(activities)),
    "by row": lambda activities: 0.1 * tf.reduce_sum(tf.square(activities), axis=-1),
    "maximum": lambda activities: 0.3 * tf.reduce_max(activities),
    "variance": lambda activities: 0.3 * tf.math.reduce_variance(activities, axis=0),
}


@pytest.mark.parametrize("name", REGULARIZERS)
def test_activities_of_all_rows_are_regularized(name):
    x = np.random.default_rng(0).normal(size=(25, 4)).astype("float32")  # the last batch has one row
    found = []
    for num_replicas in (0, 2):
        keras.utils.set_random_seed(0)
        with scope_of(num_replicas):
            hidden = keras.layers.Dense(3, activity_regularizer=REGULARIZERS[name])
            model = keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        train = fit if num_replicas else keras.Model.fit
        history = train(
            model, x, x[:, :1], batch_size=8, shuffle=False, validation_data=(x, x[:, :1]), verbose=0
        ).history
        found.append((history["loss"], history["val_loss"], *model.get_weights()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert hidden.activity_regularizer is REGULARIZERS[name]


class HalfOfTheLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        of_rows = keras.losses.MeanSquaredError(reduction=None)(tf.zeros_like(y_pred), y_pred)
        return 0.5 * super().compute_loss(x, y, y_pred, sample_weight) + 0.1 * tf.reduce_mean(of_rows)


class OwnStepOfTheLoss(HalfOfTheLoss):
    def train_step(self, data):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, weights)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.compute_metrics(x, y, y_pred, weights)


@pytest.mark.parametrize("kind", [HalfOfTheLoss, OwnStepOfTheLoss])
def test_a_compiled_loss_that_couples_rows_is_gathered_wherever_it_is_called(kind):
    x, found = np.random.default_rng(0).normal(size=(21, 4)).astype("float32"), []
    for num_replicas in (0, 2):
        keras.utils.set_random_seed(0)
        with scope_of(num_replicas):
            inputs = keras.Input((4,))
            model = kind(inputs, keras.layers.Dense(1)(inputs))
            model.compile("sgd", lambda y, z: tf.reduce_max(tf.abs(y - z)), metrics=["mae"])
        train = fit if num_replicas else keras.Model.fit
        history = train(model, x, x[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0)
        found.append((history.history["mae"], *model.get_weights()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
