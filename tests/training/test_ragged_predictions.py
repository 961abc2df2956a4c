"""`predict` returns ragged and sparse tensors, as Keras does; warnings are at the line that called tfaccel."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfaccel


def dataset(widths):
    def batches():
        for number, width in enumerate(widths):
            yield np.arange((number + 1) * width * 2, dtype="float32").reshape(number + 1, width, 2)

    found = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec((None, None, 2), tf.float32))
    return found.apply(tf.data.experimental.assert_cardinality(len(widths)))


@pytest.mark.parametrize("widths", [(5, 7, 4), (5, 5, 4), (5, 5, 5)])
def test_outputs_are_those_of_keras(logical_devices, widths):
    inputs = keras.Input((None, 2))
    outputs = [keras.layers.Rescaling(2.0)(inputs), keras.layers.GlobalAveragePooling1D()(inputs)]
    model = keras.Model(inputs, [*outputs, keras.ops.sum(inputs, axis=-1)])
    expected = model.predict(dataset(widths), verbose=0)
    for one, other in zip(expected, tfaccel.predict(model, dataset(widths), verbose=0), strict=True):
        assert type(one) is type(other)
        if isinstance(one, tf.RaggedTensor):
            assert (one.dtype, one.ragged_rank, one.to_list()) == (other.dtype, other.ragged_rank, other.to_list())
        else:
            np.testing.assert_array_equal(one, other)


class Sparse(keras.Model):
    def call(self, x):
        return tf.sparse.from_dense(tf.nn.relu(x - 0.5))


def test_sparse_outputs_of_replicas_are_those_of_one_device(logical_devices):
    rows = np.random.default_rng(0).random((9, 3)).astype("float32")  # a last batch of one row
    expected = tfaccel.predict(Sparse(), rows, batch_size=4, verbose=0)
    with tf.distribute.MirroredStrategy(logical_devices[:2]).scope():
        model = Sparse()
    found = tfaccel.predict(model, rows, batch_size=4, verbose=0)
    np.testing.assert_array_equal(*(tf.sparse.to_dense(one).numpy() for one in (expected, found)))


def test_warnings_are_at_the_line_of_the_user(logical_devices):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    keras.config.set_max_epochs(1)
    keras.config.set_max_steps_per_epoch(1)
    try:
        with pytest.warns(UserWarning, match="^Limiting") as found:
            tfaccel.fit(model, np.ones((8, 3)), np.ones((8, 1)), epochs=2, batch_size=4, verbose=0)
            tfaccel.predict(model, np.ones((8, 3)), batch_size=4, verbose=0)
    finally:
        keras.config.set_max_epochs(None)
        keras.config.set_max_steps_per_epoch(None)
    assert {one.filename for one in found} == {__file__}
    assert len(found) == 3
