"""Batches of images as `tf.data`, shuffled and moved about by numbers that are fixed for each epoch."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfaccel.data.image_moves import ImageMoves
from tfaccel.data.image_set import ImageSet, ImageSplit
from tfaccel.errors import DataError

# Decoded images up to this size are kept in memory; more are decoded again in every epoch.
MOST_BYTES_IN_MEMORY = 2**30
_DECODING_ROWS = 64
_MOST_PARALLEL_CALLS = 8

Reader = Callable[[tf.Tensor], tf.Tensor]


class ImageBatches:
    """The batches of an image set.

    Everything random about an epoch (order, and how each image is moved) is drawn by numpy from seed and epoch and
    belongs to a position in the epoch. So an epoch can be repeated exactly, in any process and with any batch size.

    Arguments:
        images: what to batch. Files are decoded by `tf.data`, once where all of them fit into a gigabyte of memory.
        moves: how far training images are moved at random.

    Example:
        >>> from tfaccel.data.digits import digits
        >>> images, labels = next(iter(ImageBatches(digits(), ImageMoves()).train(64, seed=0, epoch=0)))
        >>> images.shape, labels.shape
        (TensorShape([64, 8, 8, 1]), TensorShape([64, 10]))
    """

    def __init__(self, images: ImageSet, moves: ImageMoves) -> None:
        self._images = images
        self._moves = moves
        self._parts = images.load()
        num_bytes = (images.num_train_images + images.num_test_images) * images.image_size**2 * images.num_channels
        self._in_memory = num_bytes <= MOST_BYTES_IN_MEMORY
        self._traced: dict[int, Callable[..., tuple[tf.Tensor, tf.Tensor]]] = {}

    def train(self, global_batch_size: int, *, seed: int, epoch: int) -> tf.data.Dataset:
        """One epoch of training batches: images (float32, raw pixel values) and one-hot labels (float32).

        All batches are full, so that shapes are fixed for XLA and every replica has an equal share: the images left
        over are other ones in each epoch.

        Raises:
            DataError: if there are fewer images than one batch takes.
        """
        num_images = self._images.num_train_images
        num_steps = num_images // global_batch_size
        if num_steps == 0:
            raise DataError(
                f"A batch takes {global_batch_size} images, but there are {num_images} to train on. "
                f"Use a global batch size of at most {num_images}."
            )
        generator = np.random.default_rng([seed, epoch])
        rows = generator.permutation(num_images)
        transforms = self._moves.transforms(generator, num_images, self._images.image_size)
        used = num_steps * global_batch_size
        batches = (
            rows[:used].reshape(num_steps, global_batch_size),
            transforms[:used].reshape(num_steps, global_batch_size, 8),
        )
        return _mapped(tf.data.Dataset.from_tensor_slices(batches), self._moved_batch(global_batch_size))

    def test(self, global_batch_size: int) -> tf.data.Dataset:
        """The test images in their order, as they are; the last batch may have fewer."""
        read, labels = self._test_part

        def batch(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return tf.cast(read(rows), tf.float32), tf.gather(labels, rows)

        return _mapped(tf.data.Dataset.range(self._images.num_test_images).batch(global_batch_size), batch)

    def _moved_batch(self, global_batch_size: int) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
        """The function that makes a training batch, traced once and not in every epoch."""
        if global_batch_size not in self._traced:
            self._traced[global_batch_size] = self._trace(global_batch_size)
        return self._traced[global_batch_size]

    def _trace(self, global_batch_size: int) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
        read, labels = self._train_part
        size, num_channels = self._images.image_size, self._images.num_channels

        @tf.function
        def moved_batch(rows: tf.Tensor, transforms: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            moved = tf.raw_ops.ImageProjectiveTransformV3(
                images=tf.cast(read(rows), tf.float32),
                transforms=transforms,
                output_shape=[size, size],
                fill_value=0.0,
                interpolation="BILINEAR",
                fill_mode="NEAREST",
            )
            moved = tf.ensure_shape(moved, [global_batch_size, size, size, num_channels])
            return moved, tf.gather(labels, rows)

        rows = tf.TensorSpec([global_batch_size], tf.int64)
        transforms = tf.TensorSpec([global_batch_size, 8], tf.float32)
        return moved_batch.get_concrete_function(rows, transforms)

    @functools.cached_property
    def _train_part(self) -> tuple[Reader, tf.Tensor]:
        return self._reader(self._parts[0]), self._one_hot(self._parts[0])

    @functools.cached_property
    def _test_part(self) -> tuple[Reader, tf.Tensor]:
        return self._reader(self._parts[1]), self._one_hot(self._parts[1])

    def _reader(self, part: ImageSplit) -> Reader:
        """A function from row numbers to images of the set's size."""
        if isinstance(part.images, np.ndarray):
            return _reader_of_array(_sized(part.images, self._images.image_size))
        read = _reader_of_files(part.images, self._images)
        if not self._in_memory:
            return read
        rows = tf.data.Dataset.range(len(part.images)).batch(_DECODING_ROWS)
        return _reader_of_array(np.concatenate(list(_mapped(rows, read).as_numpy_iterator())))

    def _one_hot(self, part: ImageSplit) -> tf.Tensor:
        with tf.device("/CPU:0"):
            return tf.one_hot(part.labels, len(self._images.class_names))


def _mapped(dataset: tf.data.Dataset, function: Callable[..., object]) -> tf.data.Dataset:
    """The data set with a function applied in parallel, in order.

    tf.data's autotuning stays off: the end of an epoch would wait for its thread, up to seconds.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.deterministic = True
    num_calls = min(len(os.sched_getaffinity(0)), _MOST_PARALLEL_CALLS)
    return dataset.map(function, num_parallel_calls=num_calls).with_options(options)


def _reader_of_array(images: np.ndarray) -> Reader:
    with tf.device("/CPU:0"):
        pixels = tf.constant(images)
    return lambda rows: tf.gather(pixels, rows)


def _reader_of_files(paths: tuple[str, ...], images: ImageSet) -> Reader:
    with tf.device("/CPU:0"):
        names = tf.constant(paths)
    size, num_channels = images.image_size, images.num_channels

    def read_image(name: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_image(tf.io.read_file(name), channels=num_channels, expand_animations=False)
        image = tf.image.resize(image, [size, size], antialias=True)
        return tf.ensure_shape(tf.cast(tf.round(image), tf.uint8), [size, size, num_channels])

    return lambda rows: tf.map_fn(read_image, tf.gather(names, rows), fn_output_signature=tf.uint8)


def _sized(images: np.ndarray, size: int) -> np.ndarray:
    """An array of images brought to a height and width; uint8 stays uint8."""
    if images.shape[1:3] == (size, size):
        return images
    with tf.device("/CPU:0"):
        sized = [tf.image.resize(part, [size, size], antialias=True).numpy() for part in _portions(images)]
    pixels = np.concatenate(sized)
    return np.clip(np.round(pixels), 0, 255).astype(np.uint8) if images.dtype == np.uint8 else pixels


def _portions(images: np.ndarray) -> list[np.ndarray]:
    return [images[start : start + 1024] for start in range(0, len(images), 1024)]
