"""`ImageSet`: labeled images, split into a training and a test part."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tfaccel.errors import DataError
from tfaccel.short_repr import short_repr

MIN_IMAGE_SIZE = 8
MAX_IMAGE_SIZE = 512
MAX_DEFAULT_IMAGE_SIZE = 64
TEST_FRACTION = 0.2


class EncodedImages(ABC):
    """Images as bytes of image files from any storage; read by index, from any thread."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of images."""

    @abstractmethod
    def read(self, rows: np.ndarray) -> list[bytes]:
        """The bytes of the images with these indices."""

    @abstractmethod
    def identity(self) -> str:
        """A string that differs for different images."""


@short_repr
@dataclass(frozen=True)
class ImageSplit:
    """One part of an image set.

    Args:
        images: an array, uint8 or float32, of shape (num_images, height, width, channels); the names of image files; or
            encoded images.
        labels: the class index of each image; int64, of shape (num_images,).
    """

    images: np.ndarray | tuple[str, ...] | EncodedImages
    labels: np.ndarray


@short_repr
@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """Labeled images, split into a training and a test part.

    Args:
        class_names: a name for each class.
        image_size: height and width, in pixels, that images are resized to.
        num_channels: 1 (grayscale) or 3 (RGB).
        num_train_images: images in the training part.
        num_test_images: images in the test part.
        pixel_mean: approximate mean of the pixel values.
        pixel_scale: their approximate standard deviation.
        load: `load()` returns the training and the test part, the same at every call.
    """

    class_names: tuple[str, ...]
    image_size: int
    num_channels: int
    num_train_images: int
    num_test_images: int
    pixel_mean: float = 127.5
    pixel_scale: float = 63.75
    load: Callable[[], tuple[ImageSplit, ImageSplit]]


def check_image_size(image_size: int) -> None:
    """Raises DataError for an unsupported image size.

    Example:
        >>> check_image_size(4)
        Traceback (most recent call last):
        ...
        tfaccel.errors.DataError: `image_size` must be a whole number from 8 to 512 pixels. Received: image_size=4.
    """
    if type(image_size) is not int or not MIN_IMAGE_SIZE <= image_size <= MAX_IMAGE_SIZE:
        raise DataError(
            f"`image_size` must be a whole number from {MIN_IMAGE_SIZE} to {MAX_IMAGE_SIZE} pixels. "
            f"Received: image_size={image_size!r}."
        )


def split_rows(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers of a stratified 80/20 split, which depends on the labels alone, not on the seed of a run.

    Args:
        labels: the class of each row; every class at least twice.

    Returns:
        The rows of the training part and of the test part. Each class makes up the same fraction of both, up to
        rounding.

    Example:
        >>> train, test = split_rows(np.repeat([0, 1], 10))
        >>> len(train), len(test)
        (16, 4)
    """
    from sklearn.model_selection import train_test_split

    num_test = max(int(np.ceil(TEST_FRACTION * len(labels))), len(np.unique(labels)))
    train, test = train_test_split(np.arange(len(labels)), test_size=num_test, random_state=0, stratify=labels)
    return train, test
