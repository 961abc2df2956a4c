"""Image files, and encoded images from elsewhere, decoded by `tf.data` and brought to one size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfaccel.data.images.image_set import EncodedImages, ImageSet


def decoder(images: tuple[str, ...] | EncodedImages, of: ImageSet) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function from row numbers to decoded images: uint8, of shape (num_rows, size, size, channels).

    Args:
        images: the names of files, or images that are read by number.
        of: the set that they are from, which tells size and channels.
    """
    size, num_channels = of.image_size, of.num_channels
    content, read_content = _contents(images)

    def image(item: tf.Tensor) -> tf.Tensor:
        decoded = tf.io.decode_image(read_content(item), channels=num_channels, expand_animations=False)
        resized = tf.image.resize(decoded, [size, size], antialias=True)
        return tf.ensure_shape(tf.cast(tf.round(resized), tf.uint8), [size, size, num_channels])

    return lambda rows: tf.map_fn(image, content(rows), fn_output_signature=tf.uint8)


def _contents(
    images: tuple[str, ...] | EncodedImages,
) -> tuple[Callable[[tf.Tensor], tf.Tensor], Callable[[tf.Tensor], tf.Tensor]]:
    """From row numbers to file names and from a name to bytes; or from row numbers to bytes, which stay as they are."""
    if isinstance(images, EncodedImages):

        def read(rows: np.ndarray) -> np.ndarray:
            return np.array(images.read(rows), dtype=object)

        def read_rows(rows: tf.Tensor) -> tf.Tensor:
            content = tf.numpy_function(read, [rows], tf.string, stateful=False)
            return tf.ensure_shape(content, [rows.shape[0]])

        return read_rows, tf.identity
    with tf.device("/CPU:0"):
        names = tf.constant(images)
    return lambda rows: tf.gather(names, rows), tf.io.read_file
