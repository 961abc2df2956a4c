"""How the bytes of an image become pixels: by one function, in training, inspection, exports and serving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.errors import DataError

if TYPE_CHECKING:
    import tensorflow as tf


def decoded(content: Any, num_channels: int) -> tf.Tensor:
    """The pixels of an image, uint8, of shape (height, width, num_channels); also in graphs.

    As Keras decodes images: the first frame of an animation, the high byte of values of 16 bits, without transparency,
    and as stored, whatever the EXIF orientation says.

    Args:
        content: the bytes of the image, or a scalar tensor of them.
        num_channels: 1 (grayscale) or 3 (RGB).
    """
    import tensorflow as tf

    return tf.io.decode_image(content, channels=num_channels, expand_animations=False)


def pixels(content: bytes, num_channels: int, *, name: str) -> np.ndarray:
    """The pixels of an image as an array; see `decoded`.

    Raises:
        DataError: if it cannot be decoded; the message names it.
    """
    import tensorflow as tf

    try:
        with tf.init_scope(), tf.device("/CPU:0"):
            return np.asarray(decoded(content, num_channels))
    except tf.errors.OpError as error:
        raise DataError(f"Cannot read the image {name}: {error.message:.200}. Repair or remove it.") from error
