"""The networks of the speedrun in Keras, and the schedule of their learning rate."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, ops

FILTERS = (32, 64, 128)
PATCH_SIZE, PATCH_STRIDE = 4, 2
NORM_MOMENTUM, NORM_EPSILON = 0.9, 1e-3
ERASED_AREA = (0.02, 0.3)  # of an image, the least and the most
_WHITENING_EPSILON = 0.05
_MAX_PATCHES = 200_000


def build_network(image_shape: tuple[int, ...], num_classes: int, recipe: dict[str, Any], patches: Any) -> keras.Model:
    """A network of the speedrun: convolutions with batch normalization, the largest value of each filter, one Dense.

    The "plain" network is what Keras's guides build: two convolutions at each of three resolutions, the image's first.
    In the "pooled" one, the first convolution halves the image, and the first one of each resolution is pooled at once.

    Args:
        image_shape: height, width and channels.
        num_classes: number of logits.
        recipe: the fields of a `tfaccel.benchmarks.speedrun_rows.Recipe`.
        patches: the kernel of a first layer that is not trained; see `whitening_kernel`. None for one that is.
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


def whitening_kernel(images: np.ndarray) -> np.ndarray:
    """The eigenvectors of the images' patches, each over the root of its eigenvalue, and their negatives.

    So what the filters see has equal variance in all directions, as in https://github.com/tysam-code/hlb-CIFAR10.

    Args:
        images: (num_images, height, width, channels), with numbers as the network sees them.

    Returns:
        The kernel of a convolution: (size, size, channels, filters).
    """
    patches = np.lib.stride_tricks.sliding_window_view(images[:2000], (PATCH_SIZE, PATCH_SIZE), axis=(1, 2))
    channels = images.shape[-1]
    rows = patches.transpose(0, 1, 2, 4, 5, 3).reshape(-1, PATCH_SIZE * PATCH_SIZE * channels)[:_MAX_PATCHES]
    values, vectors = np.linalg.eigh(np.cov(rows.astype(np.float64), rowvar=False))
    order = np.argsort(values)[::-1][: FILTERS[0] // 2]
    scaled = vectors[:, order] / np.sqrt(values[order] + _WHITENING_EPSILON)
    kernel = np.concatenate([scaled, -scaled], axis=1)
    return kernel.reshape(PATCH_SIZE, PATCH_SIZE, channels, -1).astype(np.float32)


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


def triangle_sides(step: Any, num_steps: int, warm_up: float) -> tuple[Any, Any]:
    """The rising and the falling side of the triangle, as factors of its peak.

    Example:
        >>> triangle_sides(1.0, 10, 0.5), triangle_sides(9.0, 10, 0.5)
        ((0.4, 1.8), (2.0, 0.2))
    """
    top = num_steps * warm_up
    return (step + 1) / top, (num_steps - step) / (num_steps - top)
