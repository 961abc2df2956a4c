"""The Keras models of the GPU suite; `torch_models` has the same functions in PyTorch."""

from __future__ import annotations

from typing import Any

import keras

from tfaccel.benchmarks.gpu.tasks import VOCABULARY, Size
from tfaccel.benchmarks.synthetic_data import NUM_CLASSES

EXPANSION = 4  # of a bottleneck's filters, and of a Transformer's inner layer
HEAD_SIZE = 64


def mlp(size: Size) -> keras.Model:
    """Hidden layers of one width: almost no computation, so that the overhead between steps shows."""
    hidden = [keras.layers.Dense(size.width, activation="relu") for _ in range(size.depth[0])]
    return keras.Sequential([keras.Input(size.input_shape), *hidden, keras.layers.Dense(NUM_CLASSES)])


def transformer(size: Size) -> keras.Model:
    """An encoder with normalization before each part, and a layer on the mean of its outputs."""
    layers = keras.layers
    num_heads = max(1, size.width // HEAD_SIZE)
    tokens = keras.Input(size.input_shape, dtype="int32")
    x = layers.Embedding(VOCABULARY, size.width)(tokens)
    for _ in range(size.depth[0]):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(num_heads, size.width // num_heads)(y, y)])
        y = layers.Dense(EXPANSION * size.width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(size.width)(y)])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(tokens, layers.Dense(NUM_CLASSES, dtype="float32")(x))


def resnet(size: Size) -> keras.Model:
    """A ResNet of bottlenecks whose 3x3 convolutions have the strides; with depths 3, 4, 6, 3 it is ResNet-50."""
    layers = keras.layers
    images = keras.Input(size.input_shape)
    x = layers.Rescaling(1 / 255)(images)
    x = layers.ReLU()(_convolved(x, size.width, 7, strides=2))
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    for stage, num_blocks in enumerate(size.depth):
        for block in range(num_blocks):
            x = _bottleneck(x, size.width * 2**stage, strides=2 if stage and not block else 1, is_first=not block)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, layers.Dense(NUM_CLASSES, dtype="float32")(x))


def _bottleneck(x: Any, filters: int, *, strides: int, is_first: bool) -> Any:
    layers = keras.layers
    shortcut = _convolved(x, EXPANSION * filters, 1, strides=strides) if is_first else x
    y = layers.ReLU()(_convolved(x, filters, 1))
    y = layers.ReLU()(_convolved(y, filters, 3, strides=strides))
    y = _convolved(y, EXPANSION * filters, 1)
    return layers.ReLU()(layers.Add()([shortcut, y]))


def _convolved(x: Any, filters: int, size: int, strides: int = 1) -> Any:
    x = keras.layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)
    return keras.layers.BatchNormalization()(x)
