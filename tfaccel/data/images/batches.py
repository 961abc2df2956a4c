"""Batches of images as `tf.data`, shuffled and transformed with random numbers that are fixed for each epoch."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.cache_choice import CacheOptions
from tfaccel.data.epochs import Epochs, Part, gathered
from tfaccel.data.images.decoding import decoded
from tfaccel.data.images.image_set import EncodedImages, ImageSet, ImageSplit
from tfaccel.data.images.moves import ImageMoves
from tfaccel.data.pipeline import AUTOMATIC, Augmentation, Pipeline
from tfaccel.data.tfrecord_files import file_states

if TYPE_CHECKING:
    import tensorflow as tf


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
            cache = dataclasses.replace(self._cache, identity=functools.partial(_identity, part.images, self._images))

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
