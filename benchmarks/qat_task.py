"""A model that loses a few points of accuracy with post-training int8, for the quantization-aware training benchmark.

A depthwise network without normalization learns the digits. Then the channels of each layer are spread: the output of
channel c is multiplied by a factor, and the next layer's weights for it are divided by the same factor. This changes
nothing in float32, since a ReLU commutes with positive factors. Trained mobile networks have such spread ranges, which
is why they lose accuracy with int8: all channels of a layer share one scale.

Source: Nagel et al., Data-free quantization through weight equalization and bias correction, 2019,
    https://arxiv.org/abs/1906.04721 (which does the reverse: it equalizes spread channels)
"""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.images.image_data import ImageBatches, ImageMoves
from tfaccel.data.images.image_set import digits
from tfaccel.planning.workload import Workload

EPOCHS = 30
GLOBAL_BATCH_SIZE = 64
FILTERS = (24, 32, 32)
SPREAD = 1.6  # standard deviation of the factors' natural logarithms
# How the spread network is fine-tuned with simulated int8.
QAT_OPTIONS = {"epochs": 12, "learning_rate": 3e-3}
_LEARNING_RATE = 3e-3


def build_model() -> keras.Model:
    """A fresh network: raw pixel values in, a logit for each of ten digits out.

    Example:
        >>> build_model().output_shape
        (None, 10)
    """
    layers = keras.layers
    parts: list[Any] = [keras.Input((8, 8, 1), name="pixels"), layers.Rescaling(1 / 127.5, -1.0, name="scaled")]
    parts.append(layers.Conv2D(FILTERS[0], 3, padding="same", activation="relu", name="first"))
    for number, filters in enumerate(FILTERS):
        depthwise: dict[str, Any] = {"padding": "same", "activation": "relu", "name": f"depthwise_{number}"}
        parts.append(layers.DepthwiseConv2D(3, 2 if number == 1 else 1, **depthwise))
        parts.append(layers.Conv2D(filters, 1, activation="relu", name=f"pointwise_{number}"))
    parts += [layers.Flatten(name="features"), layers.Dense(10, name="logits")]
    return keras.Sequential(parts, name="depthwise_digits")


def workload() -> Workload:
    """The workload of the network: the digits with slight augmentation."""
    images = digits()
    batches = ImageBatches(images, ImageMoves(rotation=0.2, zoom=0.1, shift=0.1))

    def compile_args(num_steps: int) -> dict[str, Any]:
        rate = keras.optimizers.schedules.CosineDecay(_LEARNING_RATE, num_steps)
        loss = keras.losses.CategoricalCrossentropy(from_logits=True)
        return {"optimizer": keras.optimizers.Adam(rate), "loss": loss, "metrics": ["accuracy"]}

    def train_data(global_batch_size: int, *, seed: int, epoch: int) -> tf.data.Dataset:
        return batches.train(global_batch_size, seed=seed, epoch=epoch)

    return Workload(
        name="depthwise_digits",
        build_model=build_model,
        compile_args=compile_args,
        train_data=train_data,
        validation_data=batches.test,
        global_batch_size=GLOBAL_BATCH_SIZE,
        epochs=EPOCHS,
        num_train_examples=images.num_train_images,
    )


def spread_channels(model: keras.Model, *, spread: float = SPREAD, seed: int = 0) -> None:
    """Gives the channels of the network's layers different ranges, in place; its outputs stay the same.

    Args:
        model: from `build_model`.
        spread: standard deviation of the natural logarithms of the factors.
        seed: the seed of the factors.

    Example:
        >>> model = build_model()
        >>> images = np.random.default_rng(0).uniform(0, 255, (2, 8, 8, 1))
        >>> before = model(images)
        >>> spread_channels(model)
        >>> bool(np.allclose(before, model(images), rtol=1e-3, atol=1e-3))
        True
    """
    generator = np.random.default_rng(seed)
    convolutions = [
        layer for layer in model.layers if isinstance(layer, (keras.layers.Conv2D, keras.layers.DepthwiseConv2D))
    ]
    for layer, following in itertools.pairwise(convolutions):
        kernel, bias = layer.get_weights()
        factors = np.exp(generator.normal(0.0, spread, bias.shape)).astype(np.float32)
        depthwise = isinstance(layer, keras.layers.DepthwiseConv2D)
        layer.set_weights([kernel * (factors[:, None] if depthwise else factors), bias * factors])
        kernel, bias = following.get_weights()
        following.set_weights([kernel / factors[:, None], bias])
