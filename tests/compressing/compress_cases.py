"""Small models and data for tests of `compress`: labels are what the model itself says, so that float32 is right."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tfaccel import Workload

NUM_ROWS = 60
QUICK = {"latency_seconds": 0.01, "num_threads": (1,), "num_representative": 20}


def images(seed: int = 0, num_rows: int = NUM_ROWS) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num_rows, 8, 8, 1)).astype("float32")


def image_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 1), name="pixels")
    x = layers.Conv2D(16, 3, padding="same", use_bias=False, name="first")(inputs)
    x = layers.ReLU(name="rectifier")(layers.BatchNormalization(name="normalization")(x))
    x = layers.Conv2D(32, 3, strides=2, activation="relu", name="second")(x)
    x = layers.Dense(64, activation="relu", name="hidden")(layers.Flatten(name="flat")(x))
    return keras.Model(inputs, layers.Dense(10, name="logits")(x), name="tiny")


def image_workload() -> Workload:
    model = image_model()
    labels = {seed: model.predict(images(seed), verbose=0).argmax(axis=1) for seed in (0, 1)}

    def data(batch_size: int, seed: int) -> Any:
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices((images(seed), labels[seed])).batch(batch_size)

    return Workload(
        "tiny_images",
        image_model,
        lambda: {
            "optimizer": "sgd",
            "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "metrics": ["accuracy"],
        },
        lambda batch_size, *, seed, epoch: data(batch_size, 0),
        lambda batch_size: data(batch_size, 1),
        global_batch_size=16,
        num_train_examples=NUM_ROWS,
    )


def several_inputs_model(*, unroll: bool = False) -> keras.Model:
    """Tokens and numbers in, two outputs by name."""
    keras.utils.set_random_seed(1)
    tokens, numbers = keras.Input((6,), dtype="int32", name="tokens"), keras.Input((3,), name="numbers")
    x = layers.Bidirectional(layers.LSTM(8, name="lstm", unroll=unroll), name="both_ways")(
        layers.Embedding(20, 8)(tokens)
    )
    x = layers.Concatenate()([x, numbers])
    return keras.Model(
        {"tokens": tokens, "numbers": numbers},
        {"score": layers.Dense(1, name="score")(x), "kind": layers.Dense(4, name="kind")(x)},
    )


def several_inputs(num_rows: int = NUM_ROWS) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(2)
    return {
        "numbers": generator.normal(size=(num_rows, 3)).astype("float32"),
        "tokens": generator.integers(0, 20, (num_rows, 6)),
    }


@keras.saving.register_keras_serializable("tfaccel_tests")
class Subclassed(keras.Model):
    """A model that is subclassed, which takes a list and gives a tuple."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.first = layers.Dense(16, activation="relu")
        self.second = layers.Dense(3)

    def call(self, inputs: Any) -> Any:
        x = self.first(ops.concatenate([inputs[0], inputs[1]], axis=-1))
        return self.second(x), ops.tanh(x)


@keras.saving.register_keras_serializable("tfaccel_tests")
class Odd(layers.Layer):
    """A layer that LiteRT cannot take."""

    def call(self, inputs: Any) -> Any:
        return ops.erfinv(0.9 * ops.tanh(inputs))


class OwnTestStep(keras.Model):
    """A model whose metric is not seen from its outputs."""

    def test_step(self, data: Any) -> dict[str, Any]:
        del data
        return {"loss": 0.0}


def stack_of_blocks(num_blocks: int = 2) -> keras.Model:
    """A model that names its blocks, for GPTQ and AWQ; its inputs differ in size, and two of them are alike."""
    keras.utils.set_random_seed(3)
    tokens = keras.Input((12,), dtype="int32", name="tokens")
    parts = [layers.Embedding(30, 16), layers.Dense(32, activation="relu"), layers.Dense(8)]
    x = tokens
    for part in parts:
        x = part(x)
    model = keras.Model(tokens, x)
    model.get_quantization_layer_structure = lambda mode: {
        "pre_block_layers": parts[:1],
        "sequential_blocks": parts[1 : 1 + num_blocks],
    }
    rows = np.random.default_rng(1).normal(size=(30, 16)) * np.linspace(0.05, 3, 16)
    rows[:, 1] = 2 * rows[:, 0] + 0.1 * rows[:, 1]
    parts[0].set_weights([rows])
    return model
