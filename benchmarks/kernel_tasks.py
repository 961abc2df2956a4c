"""Tasks whose time is mostly that of one fused kernel: a layer of its own kind, or an optimizer's update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import keras

from tfaccel.benchmarks.choice_tasks import FAMILIES
from tfaccel.benchmarks.engine_tasks import Task, large_mlp
from tfaccel.benchmarks.synthetic_data import NUM_CLASSES


class Shift(keras.layers.Layer):
    """Adds a weight to each feature: it takes little time, and the layer behind it computes its input's gradient."""

    def build(self, input_shape: Any) -> None:
        """Makes the weight."""
        self.shift = self.add_weight(shape=input_shape[-1:], initializer="zeros", name="shift")

    def call(self, inputs: Any) -> Any:
        """Adds it."""
        return inputs + self.shift


def one_layer(name: str, layer: Callable[[], Any], input_shape: tuple[int, ...], **fields: Any) -> Task:
    """A layer between its input and a classifier of what it returns, averaged over positions.

    Args:
        name: of the layer.
        layer: returns a function of a Keras tensor.
        input_shape: of one example; the last axis is that of the features.
        **fields: of `Task`.

    Example:
        >>> task = one_layer("GELU", lambda: keras.layers.Activation("gelu"), (8, 4), steps_per_epoch=2)
        >>> task.build_model().output_shape
        (None, 10)
    """

    def build() -> keras.Model:
        inputs = keras.Input(input_shape)
        pooling = keras.layers.GlobalAveragePooling2D if len(input_shape) == 3 else keras.layers.GlobalAveragePooling1D
        return keras.Model(inputs, keras.layers.Dense(NUM_CLASSES)(pooling()(layer()(Shift()(inputs)))))

    return Task(name=name, build_model=build, input_shape=input_shape, **{"global_batch_size": 64, **fields})


def _attention(**options: Any) -> Callable[[Any], Any]:
    layer = keras.layers.MultiHeadAttention(num_heads=4, key_dim=64, dropout=0.1)
    return lambda x: layer(x, x, **options)


_SEQUENCES = (128, 256)
KERNEL_TASKS: Mapping[str, Task] = {
    "kernel_batch_normalization": one_layer(
        "BatchNormalization", keras.layers.BatchNormalization, (32, 32, 64), steps_per_epoch=20
    ),
    "kernel_layer_normalization": one_layer(
        "LayerNormalization", keras.layers.LayerNormalization, _SEQUENCES, steps_per_epoch=40
    ),
    "kernel_gelu": one_layer("GELU", lambda: keras.layers.Activation("gelu"), _SEQUENCES, steps_per_epoch=40),
    "kernel_dense_bfloat16": one_layer(
        "Dense", lambda: keras.layers.Dense(512), _SEQUENCES, steps_per_epoch=10, dtype_policy="mixed_bfloat16"
    ),
    "kernel_convolution_bfloat16": one_layer(
        "Conv2D",
        lambda: keras.layers.Conv2D(128, 3, padding="same"),
        (7, 7, 64),
        global_batch_size=256,
        steps_per_epoch=40,
        dtype_policy="mixed_bfloat16",
    ),
    "kernel_einsum_dense": one_layer(
        "EinsumDense",
        lambda: keras.layers.EinsumDense("abc,cd->abd", (128, 256), bias_axes="d"),
        _SEQUENCES,
        steps_per_epoch=10,
    ),
    "kernel_attention": one_layer("attention", _attention, _SEQUENCES, steps_per_epoch=4),
    "kernel_attention_masked": one_layer(
        "masked attention", partial(_attention, use_causal_mask=True), _SEQUENCES, steps_per_epoch=4
    ),
    "kernel_adam": large_mlp(steps_per_epoch=40, optimizer={"class_name": "Adam", "config": {"learning_rate": 1e-4}}),
    "kernel_adam_embedding": Task(
        name="Adam with an embedding",
        build_model=FAMILIES["embedding"].build_model,
        input_shape=FAMILIES["embedding"].input_shape,
        num_tokens=FAMILIES["embedding"].num_tokens,
        global_batch_size=FAMILIES["embedding"].global_batch_size,
        steps_per_epoch=100,
    ),
    "kernel_momentum": large_mlp(
        steps_per_epoch=40, optimizer={"class_name": "SGD", "config": {"learning_rate": 0.01, "momentum": 0.9}}
    ),
}
