"""The networks of the speedrun in Keras, and the schedule of their learning rate."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from tfaccel.benchmarks.speedrun_rows import (
    ERASED_AREA,
    FILTERS,
    NORM_EPSILON,
    NORM_MOMENTUM,
    PATCH_SIZE,
    PATCH_STRIDE,
    triangle_sides,
)


def build_network(image_shape: tuple[int, ...], num_classes: int, recipe: dict[str, Any], patches: Any) -> keras.Model:
    """A network of the speedrun: convolutions with batch normalization, the largest value of each filter, one Dense.

    The "plain" network is what Keras's guides build: two convolutions at each of three resolutions, the image's first.
    In the "pooled" one, the first convolution halves the image, and the first one of each resolution is pooled at once.

    Args:
        image_shape: height, width and channels.
        num_classes: number of logits.
        recipe: the fields of a `tfaccel.benchmarks.speedrun_rows.Recipe`.
        patches: the kernel of a first layer that is not trained, as `whitening_kernel` of
            `tfaccel.benchmarks.speedrun_program` returns it; None for one that is.
    """
    inputs = keras.Input(image_shape)
    x = layers.RandomFlip("horizontal")(inputs) if recipe["is_flipped"] else inputs
    if share := recipe["erased"]:
        x = layers.RandomErasing((share, share), scale=ERASED_AREA, fill_value=0.0, value_range=(0, 1))(x)
    if recipe["network"] == "plain":
        for filters in FILTERS:
            x = x if filters == FILTERS[0] else layers.MaxPooling2D()(x)
            x = _convolved(_convolved(x, filters), filters)
    else:
        first = layers.Conv2D(
            FILTERS[0], PATCH_SIZE, strides=PATCH_STRIDE, padding="same", use_bias=False, trainable=patches is None
        )
        x = first(x)
        if patches is not None:
            first.set_weights([patches])
        x = _normalized(x)
        for filters in FILTERS[1:]:
            x = _convolved(_convolved(x, filters, is_pooled=True), filters)
    logits = layers.Dense(num_classes, dtype="float32")(layers.GlobalMaxPooling2D()(x))
    return keras.Model(inputs, logits)


def _convolved(x: Any, filters: int, *, is_pooled: bool = False) -> Any:
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    return _normalized(layers.MaxPooling2D()(x) if is_pooled else x)


def _normalized(x: Any) -> Any:
    return layers.Activation("relu")(layers.BatchNormalization(momentum=NORM_MOMENTUM, epsilon=NORM_EPSILON)(x))


@keras.saving.register_keras_serializable("tfaccel_benchmarks")
class Triangle(keras.optimizers.schedules.LearningRateSchedule):
    """Rises to the peak in the first steps and falls to zero in the others, both linearly.

    Args:
        peak: the highest learning rate.
        num_steps: of the whole training.
        warm_up: the share of them in which it rises.
    """

    def __init__(self, peak: float, num_steps: int, warm_up: float) -> None:
        self.peak, self.num_steps, self.warm_up = peak, num_steps, warm_up

    def __call__(self, step: Any) -> Any:
        """The learning rate of a step, counted from 0."""
        return self.peak * ops.minimum(*triangle_sides(ops.cast(step, "float32"), self.num_steps, self.warm_up))

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {"peak": self.peak, "num_steps": self.num_steps, "warm_up": self.warm_up}
