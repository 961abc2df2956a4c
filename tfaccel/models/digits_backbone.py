"""The backbone that comes with tfaccel: a small network that has seen the digits 0 to 4 only.

`python -m tfaccel.models.digits_backbone FILE.keras` trains it anew, in half a minute, and saves it.
"""

from __future__ import annotations

import os
import sys

import keras
from keras import layers

from tfaccel.data.few_digits import few_digits
from tfaccel.data.image_batches import ImageBatches
from tfaccel.data.image_moves import ImageMoves
from tfaccel.models.backbones import DIGITS_CONVOLUTIONS

DIGITS_SEEN = range(5)
_EPOCHS, _BATCH_SIZE, _SEED = 30, 32, 0


def build() -> keras.Model:
    """A fresh network: raw pixel values in, a logit for each of five classes out.

    Example:
        >>> build().count_params() < 40_000
        True
    """
    inputs = keras.Input((8, 8, 1), name="pixels")
    x = layers.Rescaling(1 / 63.75, -2.0)(inputs)
    for number, (num_filters, strides) in enumerate(DIGITS_CONVOLUTIONS):
        kernel = {"kernel_initializer": keras.initializers.HeNormal(seed=number), "name": f"convolution_{number}"}
        x = layers.Conv2D(num_filters, 3, strides, padding="same", activation="relu", **kernel)(x)
    initializer = keras.initializers.GlorotUniform(seed=10)
    logits = layers.Dense(len(DIGITS_SEEN), kernel_initializer=initializer, dtype="float32", name="logits")
    return keras.Model(inputs, logits(layers.Flatten(name="features")(x)), name="digits_backbone")


def train(path: str | os.PathLike[str], *, epochs: int = _EPOCHS) -> float:
    """Trains the network on the digits 0 to 4 and saves it; returns its accuracy on their test images."""
    batches, model = ImageBatches(few_digits(DIGITS_SEEN), ImageMoves()), build()
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    model.compile(keras.optimizers.AdamW(3e-3), loss=loss, metrics=["accuracy"])
    for epoch in range(epochs):
        if epoch == epochs * 2 // 3:
            model.optimizer.learning_rate = 5e-4
        model.fit(batches.train(_BATCH_SIZE, seed=_SEED, epoch=epoch), verbose=0)
    accuracy = float(model.evaluate(batches.test(_BATCH_SIZE), verbose=0)[1])
    keras.Model(model.inputs, model.outputs, name=model.name).save(path)  # without optimizer
    return accuracy


if __name__ == "__main__":
    sys.stdout.write(f"{train(sys.argv[1]):.4f}\n")
