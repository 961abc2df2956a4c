"""`BoxedImages`: images with bounding boxes, as fixed-size arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tfaccel.short_repr import short_repr

NO_OBJECT = -1


@short_repr
@dataclass(frozen=True)
class BoxedSplit:
    """Images of equal size and their boxes.

    Args:
        images: uint8, of shape (num_images, size, size, channels).
        boxes: float32, of shape (num_images, most_objects, 4): left, top, right and bottom edge, in pixels.
        labels: int64, of shape (num_images, most_objects): the class index of each box; NO_OBJECT fills the
            unused places.
    """

    images: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray


@short_repr
@dataclass(frozen=True, kw_only=True)
class BoxedImages:
    """Images with boxes in a training and a test part.

    Args:
        class_names: a name for each class.
        image_size: height and width in pixels.
        num_channels: 1 (grayscale) or 3 (RGB).
        most_objects: maximum number of boxes in an image.
        num_train_images, num_test_images: images in each part.
        train: `train(seed, epoch)` returns one epoch's images, the same for the same seed and epoch.
        test: `test()` returns the test images, the same at every call.
    """

    class_names: tuple[str, ...]
    image_size: int
    num_channels: int
    most_objects: int
    num_train_images: int
    num_test_images: int
    train: Callable[[int, int], BoxedSplit]
    test: Callable[[], BoxedSplit]
