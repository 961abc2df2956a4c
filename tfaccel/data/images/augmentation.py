"""Augmentation of whole batches with Keras layers, whose random draws depend only on seed, epoch and batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tfaccel.data.epochs import Part
from tfaccel.data.images.image_set import ImageSet
from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean

_STREAM = 3  # keeps these seeds independent of the draws that shuffle and transform the examples
_MAX_PIXEL = 255.0  # pixel values range from 0 to this during augmentation
_CROP_MARGIN = 8  # padding is the image size divided by this
_MAX_TRACED = 32

_FLOAT32: dict[str, Any] = {"dtype": "float32"}  # whatever the model's dtype policy

_LAYERS: dict[str, Callable[[int], list[keras.layers.Layer]]] = {
    "flip": lambda size: [layers.RandomFlip("horizontal", **_FLOAT32)],
    "crop": lambda size: [
        layers.ZeroPadding2D(max(1, size // _CROP_MARGIN), **_FLOAT32),
        layers.RandomCrop(size, size, **_FLOAT32),
    ],
    "randaugment": lambda size: [layers.RandAugment((0, _MAX_PIXEL), num_ops=2, factor=0.3, **_FLOAT32)],
    "mixup": lambda size: [layers.MixUp(alpha=0.2, **_FLOAT32)],
    "cutmix": lambda size: [layers.CutMix(factor=1.0, **_FLOAT32)],
    "cutout": lambda size: [
        layers.RandomErasing(1.0, (0.02, 0.2), _MAX_PIXEL / 2, value_range=(0, _MAX_PIXEL), **_FLOAT32)
    ],
}
AUGMENTATIONS = tuple(_LAYERS)


class BatchSeeds(keras.random.SeedGenerator):
    """Gives a layer the seeds of one batch, instead of a counter that depends on earlier draws."""

    def __init__(self) -> None:
        super().__init__(seed=0)
        self._of_batch: tf.Tensor | None = None
        self._num_drawn = 0

    def begin(self, seed: tf.Tensor) -> None:
        """Starts a batch; `seed` is int32, of shape (2,)."""
        self._of_batch, self._num_drawn = seed, 0

    def next(self, ordered: bool = True) -> tf.Tensor:
        """The next seed, of shape (2,)."""
        del ordered
        self._num_drawn += 1
        return tf.convert_to_tensor(self._of_batch) + tf.constant([0, self._num_drawn], tf.int32)


class ImageAugmentation:
    """A named augmentation of batches of images and one-hot labels. Instances with equal settings are equal.

    "flip" flips images horizontally, "crop" shifts whole batches by up to an eighth, "randaugment" applies two of ten
    operations, "mixup" blends each image (and its label) with another one, "cutmix" pastes a patch of another image
    into it, and "cutout" erases a patch.

    Args:
        name: one of `AUGMENTATIONS`.
        images: the set that the batches are drawn from.

    Raises:
        DataError: if the name is unknown; the message suggests the closest one.

    Example:
        >>> from tfaccel.data.images.digits import digits
        >>> batches = tf.data.Dataset.from_tensors((tf.zeros([4, 8, 8, 1]), tf.eye(4, 10)))
        >>> augmented = ImageAugmentation("mixup", digits()).apply(batches, Part(global_batch_size=4, seed=0, epoch=0))
        >>> [part.shape for part in next(iter(augmented))]
        [TensorShape([4, 8, 8, 1]), TensorShape([4, 10])]
    """

    def __init__(self, name: str, images: ImageSet) -> None:
        if name not in _LAYERS:
            hint = did_you_mean(name, AUGMENTATIONS) or f" Augmentations: {', '.join(AUGMENTATIONS)}."
            raise DataError(f"There is no augmentation {name!r}.{hint}")
        self._kind = name, images.image_size, images.pixel_mean, images.pixel_scale, keras.config.dtype_policy().name
        self._low = images.pixel_mean - 2 * images.pixel_scale
        self._scale = 4 * images.pixel_scale / _MAX_PIXEL
        self._seeds = BatchSeeds()
        self._layers = _LAYERS[name](images.image_size)
        for layer in self._layers:
            if hasattr(layer, "generator"):
                layer.generator = self._seeds

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ImageAugmentation) and self._kind == other._kind

    def __hash__(self) -> int:
        return hash(self._kind)

    def apply(self, batches: tf.data.Dataset, part: Part) -> tf.data.Dataset:
        """The augmented batches of an epoch; deterministic in seed, epoch and batches.

        Args:
            batches: a finite dataset of full batches of images (float32, raw pixel values) and one-hot labels.
            part: which batches these are. With `augmented=False`, each batch (of any structure) is only paired with its
                seed, for `augment`.
        """
        steps = part.steps(int(batches.cardinality()))
        seeds = part.generator(_STREAM).integers(0, 2**31 - 1, (steps.stop, 2), np.int32)[steps]
        pairs = tf.data.Dataset.zip((batches, tf.data.Dataset.from_tensor_slices(seeds)))
        if not part.augmented:
            return pairs
        spec = batches.element_spec
        traced = _traced(self, tuple(spec[0].shape), tuple(spec[1].shape))
        augment = tf.autograph.experimental.do_not_convert(lambda batch, seed: traced(*batch, seed))
        return pairs.map(augment)

    def augment(self, images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Augments one whole batch with the draws of its seed. It can be traced.

        Args:
            images, labels: all rows of the batch, since the draws for a row depend on the number of rows.
            seed: int32, of shape (2,), as `apply(..., augmented=False)` yields it with the batch.
        """
        self._seeds.begin(seed)
        data = {"images": (images - self._low) / self._scale, "labels": labels}
        for layer in self._layers:
            if hasattr(layer, "get_random_transformation"):
                data = layer(data, training=True)
            else:
                data["images"] = layer(data["images"])
        augmented = tf.cast(data["images"], tf.float32) * self._scale + self._low
        mixed = tf.cast(data["labels"], tf.float32)
        return tf.ensure_shape(augmented, images.shape), tf.ensure_shape(mixed, labels.shape)


@functools.lru_cache(maxsize=_MAX_TRACED)
def _traced(augmentation: ImageAugmentation, images: tuple[int, ...], labels: tuple[int, ...]) -> Callable[..., Any]:
    """The function for batches of these shapes: traced once, rather than in every epoch or trial."""
    specs = tf.TensorSpec(images, tf.float32), tf.TensorSpec(labels, tf.float32), tf.TensorSpec([2], tf.int32)
    return tf.function(augmentation.augment, autograph=False).get_concrete_function(*specs)
