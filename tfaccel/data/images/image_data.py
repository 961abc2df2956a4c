"""The data of an image workload: training batches that are moved or augmented at random, and test batches."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.cache_choice import CacheOptions, Place
from tfaccel.data.epochs import Batches, Epochs, Part, gathered
from tfaccel.data.images.image_check import decoded
from tfaccel.data.images.image_set import EncodedImages, ImageSet, ImageSplit
from tfaccel.data.pipeline import AUTOMATIC, Augmentation, Pipeline
from tfaccel.data.raw_input import ImageInput
from tfaccel.data.tfrecord_files import file_states
from tfaccel.short_repr import short_repr

if TYPE_CHECKING:
    import tensorflow as tf


_FLOAT_BYTES = 4

_OF_IMAGES = ("moves", "none")  # the others augment whole batches and may mix their images


@short_repr
@dataclass(frozen=True)
class ImageMoves:
    """The range of random affine transformations; each amount is drawn uniformly between its bounds.

    Args:
        rotation: the largest angle, in radians, in either direction.
        zoom: height and width are each scaled by exp(-zoom) to exp(zoom).
        shift: the largest shift as a fraction of the image size, vertically and horizontally.

    Example:
        >>> ImageMoves(shift=0.5).transforms(np.random.default_rng(0), num_images=3, image_size=8).shape
        (3, 8)
    """

    rotation: float = 0.2
    zoom: float = 0.1
    shift: float = 0.1

    @property
    def is_identity(self) -> bool:
        """Whether no image is ever changed.

        Example:
            >>> ImageMoves().is_identity, ImageMoves(rotation=0.0, zoom=0.0, shift=0.0).is_identity
            (False, True)
        """
        return not (self.rotation or self.zoom or self.shift)

    def transforms(self, generator: np.random.Generator, num_images: int, image_size: int) -> np.ndarray:
        r"""One affine transform for each image, in the form that TensorFlow's `ImageProjectiveTransformV3` expects.

        The pixel at $(x, y)$ of the transformed image is that of the image at
        $(a_0 x + a_1 y + a_2, \; b_0 x + b_1 y + b_2)$.

        Returns:
            $(a_0, a_1, a_2, b_0, b_1, b_2, 0, 0)$ for each image: float32, of shape (num_images, 8).
        """
        angle, zoom_x, zoom_y, shift_x, shift_y = generator.uniform(-1.0, 1.0, (5, num_images))
        angle, scale_x, scale_y = self.rotation * angle, np.exp(self.zoom * zoom_x), np.exp(self.zoom * zoom_y)
        a0, a1 = scale_x * np.cos(angle), -scale_x * np.sin(angle)
        b0, b1 = scale_y * np.sin(angle), scale_y * np.cos(angle)
        middle = (image_size - 1) / 2  # rotation and zoom are about the center
        a2 = middle - (a0 + a1) * middle + self.shift * shift_x * image_size
        b2 = middle - (b0 + b1) * middle + self.shift * shift_y * image_size
        zero = np.zeros(num_images)
        return np.stack([a0, a1, a2, b0, b1, b2, zero, zero], axis=1).astype(np.float32)


STILL = ImageMoves(rotation=0.0, zoom=0.0, shift=0.0)


class ImageBatches(Epochs):
    """The batches of an image set; the transformation of each image is fixed by seed, epoch and position.

    Args:
        images: the image set. `tf.data` reads and decodes files, only once if the decoded images fit into the cache.
        moves: the range of random transformations of training images.
        cache: where decoded images are kept.

    Example:
        >>> from tfaccel.data.images.digits import digits
        >>> images, labels = next(iter(ImageBatches(digits(), ImageMoves()).train(64, seed=0, epoch=0)))
        >>> images.shape, labels.shape
        (TensorShape([64, 8, 8, 1]), TensorShape([64, 10]))
    """

    def __init__(self, images: ImageSet, moves: ImageMoves, *, cache: CacheOptions = AUTOMATIC) -> None:
        self._images = images
        self._moves = moves
        self._cache = cache
        self._parts = images.load()

    def get_batches(self, part: Part) -> tf.data.Dataset:
        """The batches of a part of the training data: images (float32, raw pixel values), and one-hot labels."""
        return self._train.get_batches(part)

    def augment(self, batch: tuple[Any, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """Transforms the images of a batch made with `augmented=False`, with the transforms that came with it."""
        pair: tuple[tf.Tensor, tf.Tensor] = self._train.augment(batch)
        return pair

    def test(self, global_batch_size: int) -> tf.data.Dataset:
        """The test images in order, not augmented; the last batch may be smaller."""
        return self._test.test(global_batch_size)

    @functools.cached_property
    def _train(self) -> Pipeline:
        moves, size = self._moves, self._images.image_size
        if moves.is_identity:
            return self._pipeline(self._parts[0], None)
        draw: Callable[[np.random.Generator, int], np.ndarray] = functools.partial(moves.transforms, image_size=size)
        return self._pipeline(self._parts[0], Augmentation(draw, functools.partial(_moved, size=size)))

    @functools.cached_property
    def _test(self) -> Pipeline:
        return self._pipeline(self._parts[1], None)

    def _pipeline(self, part: ImageSplit, augmentation: Augmentation | None) -> Pipeline:
        import tensorflow as tf

        num_classes, size = len(self._images.class_names), self._images.image_size
        cache: CacheOptions | None = None
        if isinstance(part.images, np.ndarray):
            read = gathered((_sized(part.images, size), part.labels))
        else:
            decode, labels = decoder(part.images, self._images), gathered(part.labels)
            cache = replace(self._cache, identity=functools.partial(_identity, part.images, self._images))

            def read(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                return decode(rows), labels(rows)

        return Pipeline(
            read,
            num_examples=len(part.labels),
            cache=cache,
            augmentation=augmentation,
            noun="images",
            prepare=lambda pair: (tf.cast(pair[0], tf.float32), tf.one_hot(pair[1], num_classes)),
        )


def _moved(pair: tuple[tf.Tensor, tf.Tensor], transforms: tf.Tensor, *, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    import tensorflow as tf

    images, labels = pair
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=transforms,
        output_shape=[size, size],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="NEAREST",
    )
    return tf.ensure_shape(moved, images.shape), labels


def _sized(images: np.ndarray, size: int) -> np.ndarray:
    """Images resized to a height and width; uint8 stays uint8."""
    import tensorflow as tf

    if images.shape[1:3] == (size, size):
        return images
    with tf.device("/CPU:0"):
        sized = [tf.image.resize(part, [size, size], antialias=True).numpy() for part in _portions(images)]
    pixels = np.concatenate(sized)
    return np.clip(np.round(pixels), 0, 255).astype(np.uint8) if images.dtype == np.uint8 else pixels


def _portions(images: np.ndarray) -> list[np.ndarray]:
    return [images[start : start + 1024] for start in range(0, len(images), 1024)]


def _identity(images: tuple[str, ...] | EncodedImages, of: ImageSet) -> str:
    """What identifies decoded images: the files (name, size and modification time) and the shape."""
    if isinstance(images, EncodedImages):
        return f"{images.identity()} {of.image_size} {of.num_channels}"
    return f"{file_states(images)} {of.image_size} {of.num_channels}"


def decoder(images: tuple[str, ...] | EncodedImages, of: ImageSet) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function from row numbers to decoded images: uint8, of shape (num_rows, size, size, channels).

    Args:
        images: file names, or images that are read by index.
        of: their image set, which defines size and channels.
    """
    import tensorflow as tf

    size, num_channels = of.image_size, of.num_channels
    content, read_content = _contents(images)

    def image(item: tf.Tensor) -> tf.Tensor:
        resized = tf.image.resize(decoded(read_content(item), num_channels), [size, size], antialias=True)
        return tf.ensure_shape(tf.cast(tf.round(resized), tf.uint8), [size, size, num_channels])

    return lambda rows: tf.map_fn(image, content(rows), fn_output_signature=tf.uint8)


def _contents(
    images: tuple[str, ...] | EncodedImages,
) -> tuple[Callable[[tf.Tensor], tf.Tensor], Callable[[tf.Tensor], tf.Tensor]]:
    """Functions from row numbers to file names and from names to bytes; or from row numbers to bytes, and identity."""
    import tensorflow as tf

    if isinstance(images, EncodedImages):

        def read(rows: np.ndarray) -> np.ndarray:
            return np.array(images.read(rows), dtype=object)

        def read_rows(rows: tf.Tensor) -> tf.Tensor:
            content = tf.numpy_function(read, [rows], tf.string, stateful=False)
            return tf.ensure_shape(content, [rows.shape[0]])

        return read_rows, tf.identity
    with tf.device("/CPU:0"):
        names = tf.constant([os.fsencode(name) for name in images])  # bytes: names need not be UTF-8
    return lambda rows: tf.gather(names, rows), tf.io.read_file


class ImageData(Batches):
    """Batches of images (float32, raw pixel values) and one-hot labels (float32).

    Args:
        images: an `ImageSet`.
        augmentation: random augmentation of training images: slight rotation, zoom and shift ("moves"), nothing
            ("none"), or the moves followed by a batch augmentation: "flip", "crop", "randaugment", "mixup", "cutmix"
            or "cutout"; see `tfaccel.data.images.augmentation`.
        moves: the range of rotation, zoom and shift.
        cache: where decoded images are kept: "memory", "disk", "none", or "auto" for the first with enough space.

    Example:
        >>> from tfaccel.data import digit_images
        >>> data = ImageData(digit_images())
        >>> images, labels = next(iter(data.train_data(64, seed=0, epoch=0)))
        >>> images.shape, labels.shape
        (TensorShape([64, 8, 8, 1]), TensorShape([64, 10]))
    """

    takes_augmented = True

    def __init__(
        self,
        images: ImageSet,
        *,
        augmentation: str = "moves",
        moves: ImageMoves = ImageMoves(),
        cache: Place = "auto",
    ) -> None:
        moved = STILL if augmentation == "none" else moves
        options = CacheOptions(place=cache)
        super().__init__(
            images,
            lambda: ImageBatches(images, moved, cache=options),
            num_train_examples=images.num_train_images,
            takes_every=True,
            raw_input=ImageInput.of(images),
        )
        self._kind = augmentation
        self.example_bytes = _FLOAT_BYTES * images.image_size**2 * images.num_channels
        self.augment = None if augmentation == "none" else self._augment
        self.augment_mixes_rows = augmentation not in _OF_IMAGES

    @functools.cached_property
    def _layers(self) -> Any:
        from tfaccel.data.images.augmentation import ImageAugmentation

        return ImageAugmentation(self._kind, self.source)

    def get_batches(self, part: Part) -> Any:
        """The batches of a part of the training data."""
        if not self.augment_mixes_rows:
            return self.made().get_batches(part)
        # The images of a batch are mixed with each other, so the whole batch is needed before it is sharded.
        whole = replace(part, shard=None)
        batches = self._layers.apply(self.made().get_batches(whole), whole)
        return part.own_rows(batches) if part.augmented else batches

    def _augment(self, batch: tuple[Any, Any]) -> Any:
        moved = self.made().augment(batch[0] if self.augment_mixes_rows else batch)
        return self._layers.augment(*moved, batch[1]) if self.augment_mixes_rows else moved
