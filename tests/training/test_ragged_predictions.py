"""`predict` returns ragged tensors, as Keras does, for batches that differ in a dimension other than rows."""

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
