"""Small models that tests export, and raw inputs that go with them."""

import numpy as np

from tfaccel.data.raw_input import ImageInput, TextInput
from tfaccel.data.texts.vocabulary import Vocabulary

WORDS = Vocabulary(unit="words", tokens=("it", "'", "s", "3", ",", "5", "\u00e4rger", "is", "nice"))
TEXTS = TextInput(vocabulary=WORDS, num_tokens=6, class_names=("good", "bad"))
IMAGES = ImageInput(image_size=8, num_channels=1, class_names=("zero", "one", "two"))


def image_model():
    import keras

    keras.utils.set_random_seed(1)
    layers = keras.layers
    parts = [keras.Input((8, 8, 1), name="pixels"), layers.Rescaling(1 / 255), layers.Conv2D(4, 3, activation="relu")]
    return keras.Sequential([*parts, layers.GlobalAveragePooling2D(), layers.Dense(3, name="logits")])


def text_model():
    import keras

    words = keras.Input((6,), dtype="int32", name="words")
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(len(WORDS), 8)(words))
    return keras.Model(words, keras.layers.Dense(2)(x))


def several_model():
    """Two inputs, one of them of free length; two outputs, one of them in half precision."""
    import keras

    inputs = {"past": keras.Input((None, 2), name="past"), "kind": keras.Input((1,), dtype="int32", name="kind")}
    last = keras.layers.GRU(4)(inputs["past"])
    kind = keras.layers.Flatten()(keras.layers.Embedding(5, 3)(inputs["kind"]))
    both = keras.layers.Concatenate()([last, kind])
    half = keras.layers.Dense(1, dtype="float16")(both)
    return keras.Model(inputs, {"level": keras.layers.Dense(2)(both), "trend": half})


def pixels(num_rows=4):
    return np.random.default_rng(0).integers(0, 256, (num_rows, 8, 8, 1)).astype(np.float32)


def refused_model():
    """A model with a layer that calculates what LiteRT cannot."""
    import keras

    class Odd(keras.layers.Layer):
        def call(self, x):
            return keras.ops.erfinv(x)

    inputs = keras.Input((3, 3))
    x = keras.layers.Dense(3, activation="tanh")(inputs)
    return keras.Model(inputs, keras.layers.Dense(2)(Odd(name="odd")(x)))
