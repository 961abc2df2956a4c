"""The tasks of the engine's benchmark: small models on synthetic data that they can learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from tfaccel.benchmarks.synthetic_data import NUM_CLASSES, synthetic_arrays

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model, its data, and the length of one window.

    Attributes:
        name: the name of the model.
        build_model: returns an uncompiled classifier with `NUM_CLASSES` logits.
        input_shape: of one example.
        num_tokens: size of the vocabulary, for examples of token ids; 0 for examples of float32 values.
        global_batch_size, steps_per_epoch, num_epochs: the length of one window.
        jit_compile, optimizer: as in `compile`.
        dtype_policy: Keras's dtype policy of the model.
    """

    name: str
    build_model: Callable[[], keras.Model]
    input_shape: tuple[int, ...]
    num_tokens: int = 0
    global_batch_size: int
    steps_per_epoch: int
    num_epochs: int = 1
    jit_compile: bool | str = "auto"
    optimizer: str | Mapping[str, Any] = "adam"
    dtype_policy: str = "float32"

    @property
    def num_steps(self) -> int:
        """Steps of one window."""
        return self.steps_per_epoch * self.num_epochs

    def shortened(self, scale: float) -> Task:
        """The task with fewer steps per epoch."""
        return replace(self, steps_per_epoch=max(2, round(self.steps_per_epoch * scale)))

    def compiled_model(self) -> keras.Model:
        """A new model, compiled as most users do: Adam, cross-entropy, accuracy."""
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(self.dtype_policy)
        try:
            model = self.build_model()
        finally:
            keras.config.set_dtype_policy(before)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(self.optimizer, loss, metrics=["accuracy"], jit_compile=self.jit_compile)
        return model

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Examples and labels of one epoch, the same at every call; the labels are a function of the examples."""
        num_examples = self.steps_per_epoch * self.global_batch_size
        return synthetic_arrays(num_examples, self.input_shape, num_tokens=self.num_tokens)

    def dataset(self) -> tf.data.Dataset:
        """The same batches through `tf.data`, in order."""
        import tensorflow as tf

        return (
            tf.data.Dataset.from_tensor_slices(self.arrays()).batch(self.global_batch_size).prefetch(tf.data.AUTOTUNE)
        )

    def mapped_dataset(self) -> tf.data.Dataset:
        """The same batches through `tf.data` with a parallel map, whose number of threads is autotuned."""
        import tensorflow as tf

        def scaled(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return tf.cast(x, tf.float32) * 1.0, y

        batches = tf.data.Dataset.from_tensor_slices(self.arrays()).batch(self.global_batch_size)
        return batches.map(scaled, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def mlp(**fields: Any) -> Task:
    """Two layers, 32 wide, batch 32: almost no computation, so the overhead between steps shows."""

    def build() -> keras.Model:
        dense = keras.layers.Dense
        layers = [dense(32, activation="relu"), dense(32, activation="relu"), dense(NUM_CLASSES)]
        return keras.Sequential([keras.Input((32,)), *layers])

    return Task(name="MLP", build_model=build, input_shape=(32,), **{"global_batch_size": 32, **fields})


def wide_mlp(**fields: Any) -> Task:
    """Three layers, 256 wide, batch 128: some milliseconds per step."""

    def build() -> keras.Model:
        hidden = [keras.layers.Dense(256, activation="relu") for _ in range(3)]
        return keras.Sequential([keras.Input((32,)), *hidden, keras.layers.Dense(NUM_CLASSES)])

    return Task(name="wide MLP", build_model=build, input_shape=(32,), **{"global_batch_size": 128, **fields})


def large_mlp(**fields: Any) -> Task:
    """Three layers, 1,024 wide, batch 128: an optimizer update takes a large share of a step."""

    def build() -> keras.Model:
        hidden = [keras.layers.Dense(1024, activation="relu") for _ in range(3)]
        return keras.Sequential([keras.Input((784,)), *hidden, keras.layers.Dense(NUM_CLASSES)])

    return Task(name="large MLP", build_model=build, input_shape=(784,), **{"global_batch_size": 128, **fields})


def cnn_model(size: int) -> keras.Model:
    """Six 3x3 convolutions, 32 to 128 filters, with batch normalization, for images of this height and width."""
    model = keras.Sequential([keras.Input((size, size, 3))])
    for filters in (32, 64, 128):
        for _ in range(2):
            model.add(keras.layers.Conv2D(filters, 3, padding="same", use_bias=False))
            model.add(keras.layers.BatchNormalization())
            model.add(keras.layers.ReLU())
        model.add(keras.layers.MaxPooling2D())
    model.add(keras.layers.GlobalAveragePooling2D())
    model.add(keras.layers.Dense(NUM_CLASSES))
    return model


def cnn(**fields: Any) -> Task:
    """Six 3x3 convolutions, 32 to 128 filters, with batch normalization, on 32x32x3 images, batch 128."""
    return Task(
        name="CNN", build_model=partial(cnn_model, 32), input_shape=(32, 32, 3), **{"global_batch_size": 128, **fields}
    )


def lstm(**fields: Any) -> Task:
    """An LSTM of 128 units on sequences of length 100, batch 128."""

    def build() -> keras.Model:
        return keras.Sequential([keras.Input((100, 32)), keras.layers.LSTM(128), keras.layers.Dense(NUM_CLASSES)])

    return Task(name="LSTM", build_model=build, input_shape=(100, 32), **{"global_batch_size": 128, **fields})


def gru(**fields: Any) -> Task:
    """A GRU of 128 units on sequences of length 100, batch 128."""

    def build() -> keras.Model:
        return keras.Sequential([keras.Input((100, 32)), keras.layers.GRU(128), keras.layers.Dense(NUM_CLASSES)])

    return Task(name="GRU", build_model=build, input_shape=(100, 32), **{"global_batch_size": 128, **fields})


def transformer(**fields: Any) -> Task:
    """A Transformer encoder of 2 layers, width 256, on 128 tokens, batch 128."""

    def build() -> keras.Model:
        layers = keras.layers
        tokens = keras.Input((128,), dtype="int32")
        x = layers.Embedding(1000, 256)(tokens)
        for _ in range(2):
            y = layers.LayerNormalization()(x)
            x = layers.Add()([x, layers.MultiHeadAttention(num_heads=4, key_dim=64)(y, y)])
            y = layers.Dense(1024, activation="relu")(layers.LayerNormalization()(x))
            x = layers.Add()([x, layers.Dense(256)(y)])
        x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
        return keras.Model(tokens, layers.Dense(NUM_CLASSES)(x))

    fields = {"global_batch_size": 128, "num_tokens": 1000, **fields}
    return Task(name="Transformer", build_model=build, input_shape=(128,), **fields)


def embedding_table(num_rows: int, **fields: Any) -> Task:
    """A table of embeddings of 32 values, looked up by four ids for each of 1,024 examples."""

    def build() -> keras.Model:
        layers = keras.layers
        ids = keras.Input((4,), dtype="int32")
        return keras.Sequential([ids, layers.Embedding(num_rows, 32), layers.Flatten(), layers.Dense(NUM_CLASSES)])

    fields = {"global_batch_size": 1024, "num_tokens": num_rows, **fields}
    return Task(name=f"table of {num_rows:,} rows", build_model=build, input_shape=(4,), **fields)
