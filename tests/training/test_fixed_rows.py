"""A number of rows that is written into a model is named, wherever it is, and whatever the data says of its rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfaccel
from tfaccel.errors import DataError, PlanError
from tfaccel.training.steps.step_errors import fixed_rows, rows_of_replica

NUM_ROWS = 8


class FixedNoise(keras.Model):
    """Adds noise for batches of 8 rows in its step, as diffusion models and GANs do."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x + tf.sin(tf.ones((NUM_ROWS, 1))), training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class FixedRows(keras.layers.Layer):
    """Takes its rows for 8, as a router of experts does."""

    def call(self, x):
        return tf.reshape(tf.reshape(x, [NUM_ROWS * 3]), [-1, 3])


class Pairs(keras.Model):
    """Its batches are one array of two images per class: the first axis is not that of the rows."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        data = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data[0], training=True) - self(data[1], training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class PairsOfClasses(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return np.random.default_rng(index).normal(size=(2, 5, 3)).astype("float32")


def model_in_scope(build, *, is_built=True, optimizer="sgd"):
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = build()
        if is_built and not model.built:
            model(np.zeros((NUM_ROWS, 3), "float32"))
        model.compile(optimizer, "mse")
    return model


def fixed_layer():
    return keras.Sequential([keras.Input((3,)), FixedRows(), keras.layers.Dense(2)])


def arrays():
    return np.zeros((16, 3), "float32"), np.zeros((16, 2), "float32")


@pytest.mark.usefixtures("logical_devices")
@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize(("drop_remainder", "optimizer"), [(True, "sgd"), (False, "sgd"), (True, "adam")])
def test_noise_of_a_fixed_number_of_rows(is_built, drop_remainder, optimizer):
    model = model_in_scope(FixedNoise, is_built=is_built, optimizer=optimizer)
    data = tf.data.Dataset.from_tensor_slices(arrays()).batch(NUM_ROWS, drop_remainder=drop_remainder)
    with pytest.raises(PlanError, match=r"FixedNoise.train_step works on a batch of 8 rows, but not on") as caught:
        tfaccel.fit(model, data, shuffle=False, verbose=0)
    said = str(caught.value)
    assert "Replace a fixed 8 by the number of rows that the step receives, `tf.shape(x)[0]`" in said
    assert "Dimensions must be equal" in said
    assert "{{node" not in said
    assert "inside the strategy's scope" not in said


@pytest.mark.usefixtures("logical_devices")
def test_a_layer_of_a_fixed_number_of_rows():
    x, y = arrays()
    with pytest.raises(PlanError, match=r"Sequential.train_step works on a batch of 8 rows.*Cannot reshape"):
        tfaccel.fit(model_in_scope(fixed_layer), x, y, batch_size=NUM_ROWS, verbose=0)


@pytest.mark.usefixtures("logical_devices")
def test_a_first_axis_that_is_not_that_of_the_rows():
    model = model_in_scope(Pairs)
    with pytest.raises(DataError, match=r"takes entry 1 of the first axis of its data, which 2 replicas split"):
        tfaccel.fit(model, PairsOfClasses(), verbose=0)


@pytest.mark.usefixtures("logical_devices")
def test_a_step_that_fails_on_any_rows_fails_as_it_is():
    x, y = arrays()
    model = model_in_scope(FixedNoise)
    with pytest.raises(ValueError, match="Dimensions must be equal, but are") as caught:
        tfaccel.fit(model, x[:15], y[:15], batch_size=5, verbose=0)
    assert not isinstance(caught.value, PlanError)


@pytest.mark.usefixtures("logical_devices")
def test_tensors_of_different_numbers_of_rows_whose_shares_do_not_fit_together():
    """As in a batch of merged graphs: the nodes, the graph of each node, and a label for each graph."""
    sizes, (x, _) = [3, 5, 4, 4], arrays()
    graphs = np.repeat(np.arange(4, dtype="int32"), sizes)
    data = tf.data.Dataset.from_tensors(((x, graphs), np.ones((4, 1), "float32"))).repeat(2)

    class Graphs(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, inputs):
            return tf.math.segment_sum(self.dense(inputs[0]), inputs[1])

    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = Graphs()
        model.compile("sgd", "mse")
    match = (
        r"Graphs.train_step fails on the rows of one replica: .*The tensors of a batch have 16, 16, 4 rows, and each"
    )
    with pytest.raises(PlanError, match=match):
        tfaccel.fit(model, data, shuffle=False, verbose=0)


def test_only_dense_rows_are_counted():
    x, y = arrays()
    assert rows_of_replica((tf.constant(x[:5]), None, tf.constant(y[:5])), 2) == (5, 3)
    assert rows_of_replica((tf.constant(x[:5]), tf.constant(y[:4])), 2) is None
    assert rows_of_replica(tf.TensorSpec([None, 3]), 2) is None
    assert rows_of_replica(tf.ragged.constant([[1], [2, 3]]), 2) is None


def test_colors_and_nodes_are_left_out():
    said = fixed_rows("A.train_step", (8, 4), ValueError("\x1b[1mno rows\n left. for '{{node a}} = Reshape'"))
    assert "ValueError: no rows left. A number of rows is written into it" in said
