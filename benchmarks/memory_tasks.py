"""The workloads of the memory benchmark: models of five families, with batches that make their memory large."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import keras
import numpy as np

from tfaccel.benchmarks.engine_tasks import cnn_model
from tfaccel.planning.workload import Workload

NUM_CLASSES = 10
_NUM_BATCHES = 3


def mlp() -> Workload:
    """Six layers, 2,048 wide; Adam."""

    def build() -> keras.Model:
        hidden = [keras.layers.Dense(2048, activation="relu") for _ in range(6)]
        return keras.Sequential([keras.Input((512,)), *hidden, keras.layers.Dense(NUM_CLASSES)])

    return _workload("mlp", build, 4096, (512,))


def cnn() -> Workload:
    """Six 3x3 convolutions with batch normalization on 64x64 images; Adam."""
    return _workload("cnn", partial(cnn_model, 64), 128, (64, 64, 3))


def transformer() -> Workload:
    """Four encoder blocks, 256 wide, on 128 tokens; AdamW."""

    def build() -> keras.Model:
        layers = keras.layers
        tokens = keras.Input((128,), dtype="int32")
        hidden = layers.Embedding(8000, 256)(tokens)
        for _ in range(4):
            normalized = layers.LayerNormalization()(hidden)
            hidden = layers.Add()([hidden, layers.MultiHeadAttention(8, 32)(normalized, normalized)])
            normalized = layers.LayerNormalization()(hidden)
            wide = layers.Dense(1024, activation="gelu")(normalized)
            hidden = layers.Add()([hidden, layers.Dense(256)(wide)])
        pooled = layers.GlobalAveragePooling1D()(hidden)
        return keras.Model(tokens, layers.Dense(NUM_CLASSES)(pooled))

    return _workload("transformer", build, 32, (128,), num_tokens=8000, optimizer="adamw")


def lstm() -> Workload:
    """Two LSTMs, 256 wide, on 64 tokens; RMSprop."""

    def build() -> keras.Model:
        layers = keras.layers
        stack = [layers.Embedding(5000, 128), layers.LSTM(256, return_sequences=True), layers.LSTM(256)]
        return keras.Sequential([keras.Input((64,), dtype="int32"), *stack, layers.Dense(NUM_CLASSES)])

    return _workload("lstm", build, 512, (64,), num_tokens=5000, optimizer="rmsprop")


def embedding() -> Workload:
    """A table of 500,000 rows, 64 wide, and two layers; Adam."""

    def build() -> keras.Model:
        layers = keras.layers
        tokens = keras.Input((16,), dtype="int32")
        rows = layers.Flatten()(layers.Embedding(500_000, 64)(tokens))
        return keras.Model(tokens, layers.Dense(NUM_CLASSES)(layers.Dense(256, activation="relu")(rows)))

    return _workload("embedding", build, 4096, (16,), num_tokens=500_000)


def _workload(
    name: str,
    build: Callable[[], keras.Model],
    batch_size: int,
    shape: tuple[int, ...],
    *,
    num_tokens: int = 0,
    optimizer: str = "adam",
) -> Workload:
    generator, num_rows = np.random.default_rng(7), _NUM_BATCHES * batch_size
    x: np.ndarray
    if num_tokens:
        x = generator.integers(0, num_tokens, (num_rows, *shape), dtype=np.int32)
    else:
        x = generator.standard_normal((num_rows, *shape), dtype=np.float32)
    return Workload.of(
        build,
        x,
        generator.integers(0, NUM_CLASSES, num_rows, dtype=np.int32),
        batch_size=batch_size,
        name=name,
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
