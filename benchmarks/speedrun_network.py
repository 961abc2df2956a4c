"""The network of the speedrun in Keras, and the layer that moves its images while it trains."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, ops

FILTERS = (32, 64, 128)
PATCH_SIZE, PATCH_STRIDE = 4, 2
NORM_MOMENTUM, NORM_EPSILON = 0.9, 1e-3
_WHITENING_EPSILON = 0.05
_MAX_PATCHES = 200_000


def build_network(image_shape: tuple[int, ...], num_classes: int, recipe: dict[str, Any], patches: Any) -> keras.Model:
    """Five convolutions with batch normalization, of which the first one halves the image.

    Args:
        image_shape: height, width and channels.
        num_classes: number of logits.
        recipe: the fields of a `tfaccel.benchmarks.speedrun_rows.Recipe`.
        patches: the kernel of a first layer that is not trained; see `whitening_kernel`. None for one that is.
    """
    inputs = keras.Input(image_shape)
    x = inputs
    if recipe["max_shift"]:
        x = MovedImages(recipe["max_shift"])(x)
    first = layers.Conv2D(
        FILTERS[0], PATCH_SIZE, strides=PATCH_STRIDE, padding="same", use_bias=False, trainable=patches is None
    )
    x = first(x)
    if patches is not None:
        first.set_weights([patches])
    x = _normalized(x)
    x = layers.MaxPooling2D()(_convolved(_convolved(x, FILTERS[1]), FILTERS[1]))
    x = _convolved(_convolved(x, FILTERS[2]), FILTERS[2])
    logits = layers.Dense(num_classes, dtype="float32")(layers.GlobalMaxPooling2D()(x))
    return keras.Model(inputs, logits)


def _convolved(x: Any, filters: int) -> Any:
    return _normalized(layers.Conv2D(filters, 3, padding="same", use_bias=False)(x))


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
class MovedImages(layers.Layer):
    """Moves each image by up to some pixels in both directions, and flips half of them, while the model trains.

    Args:
        max_shift: in pixels; what comes in at the border is zero.
        seed: of the moves.
    """

    def __init__(self, max_shift: int, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_shift = max_shift
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, x: Any, training: bool = False) -> Any:
        """The moved images."""
        if not training:
            return x
        num_images, (height, width) = ops.shape(x)[0], x.shape[1:3]
        flips = keras.random.uniform((num_images, 1, 1, 1), seed=self.seed_generator) < 0.5
        x = ops.where(flips, ops.flip(x, 2), x)
        border = [(self.max_shift, self.max_shift)] * 2
        x = ops.pad(x, [(0, 0), *border, (0, 0)])
        for axis, size in ((1, height), (2, width)):
            first = keras.random.randint((num_images, 1), 0, 2 * self.max_shift + 1, seed=self.seed_generator)
            index = first + ops.arange(size)[None]
            index = ops.reshape(index, (-1, size, 1, 1) if axis == 1 else (-1, 1, size, 1))
            x = ops.take_along_axis(x, index, axis=axis)
        return x

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {**super().get_config(), "max_shift": self.max_shift, "seed": self.seed_generator.seed}


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
