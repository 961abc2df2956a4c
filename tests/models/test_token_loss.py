"""The loss of tokens is Keras's, and smoothing is that of one-hot labels."""

import numpy as np
import pytest


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_loss_is_that_of_one_hot_labels(logical_devices, label_smoothing):
    import keras

    from tfaccel.models.losses import TokenCrossentropy

    generator = np.random.default_rng(0)
    logits = generator.normal(size=(2, 3, 5)).astype("float32")
    labels, weights = generator.integers(0, 5, (2, 3)), np.array([[1, 1, 0], [1, 0, 0]], "float32")
    reference = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=label_smoothing, reduction="mean_with_sample_weight"
    )
    expected = float(reference(np.eye(5)[labels], logits, sample_weight=weights))
    loss = TokenCrossentropy(label_smoothing)
    assert float(loss(labels, logits, sample_weight=weights)) == pytest.approx(expected, rel=1e-5)
    assert keras.losses.deserialize(keras.losses.serialize(loss)).label_smoothing == label_smoothing
