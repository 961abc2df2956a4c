"""The backbone that ships with tfaccel: a small network, pretrained on the digits 0 to 4 only.

`python -m tfaccel.models.digits_backbone FILE.keras` retrains it in half a minute and saves it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import keras
import numpy as np
from keras import layers

from tfaccel.data.images.digits import few_digits
from tfaccel.data.images.image_data import ImageBatches, ImageMoves
from tfaccel.models.backbones import DIGITS_CONVOLUTIONS

DIGITS_SEEN = range(5)
_EPOCHS, _BATCH_SIZE, _SEED = 60, 64, 0
_MIXED = 0.5  # fraction of images that CutMix combines: fragments of strokes make better features than digits
_SIZE = 8


def build() -> keras.Model:
    """Builds a network that maps raw pixel values to one logit per class (five classes).

    Example:
        >>> build().count_params() < 110_000
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
    """Trains the network on the digits 0 to 4 and saves it; returns the test accuracy."""
    images, model = few_digits(DIGITS_SEEN), build()
    batches = ImageBatches(images, ImageMoves(rotation=0.2, zoom=0.15, shift=0.1))
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    rates = keras.optimizers.schedules.CosineDecay(3e-3, epochs * (images.num_train_images // _BATCH_SIZE))
    model.compile(keras.optimizers.AdamW(rates), loss=loss, metrics=["accuracy"])
    for epoch in range(epochs):
        pixels, labels = (np.concatenate(parts) for parts in zip(*_make_batches(batches, epoch), strict=True))
        pixels, labels = mixed(pixels, labels, np.random.default_rng([_SEED, epoch]))
        model.fit(pixels, labels, batch_size=_BATCH_SIZE, shuffle=False, verbose=0)
    accuracy = float(model.evaluate(batches.test(_BATCH_SIZE), verbose=0)[1])
    keras.Model(model.inputs, model.outputs, name=model.name).save(path)  # without optimizer
    return accuracy


def _make_batches(batches: ImageBatches, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return batches.train(_BATCH_SIZE, seed=_SEED, epoch=epoch).as_numpy_iterator()


def mixed(pixels: np.ndarray, labels: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Replaces the lower or right part of some images by another image's; labels are mixed in proportion.

    Source: Yun et al., CutMix, 2019, https://arxiv.org/abs/1905.04899

    Example:
        >>> pixels, labels = np.zeros((40, 8, 8, 1)), np.eye(2)[np.arange(40) % 2]
        >>> sorted({float(row[0]) for row in mixed(pixels, labels, np.random.default_rng(0))[1]})
        [0.0, 0.375, 0.5, 0.625, 1.0]
    """
    others = generator.permutation(len(pixels))
    starts = np.where(generator.random(len(pixels)) < _MIXED, generator.integers(3, 6, len(pixels)), _SIZE)
    is_other = np.arange(_SIZE) >= starts[:, None]  # of shape (num_images, size)
    is_lower = generator.random(len(pixels)) < 0.5
    masks = np.where(is_lower[:, None, None], is_other[:, :, None], is_other[:, None, :])[..., None]
    parts = (starts / _SIZE)[:, None]
    return np.where(masks, pixels[others], pixels), parts * labels + (1 - parts) * labels[others]


if __name__ == "__main__":
    sys.stdout.write(f"{train(sys.argv[1]):.4f}\n")
