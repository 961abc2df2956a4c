"""`ImageSet`: labeled images, split into a training and a test part; from arrays, files, or encoded images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.class_labels import split_rows
from tfaccel.data.images.image_check import ImageHeader, ImageToCheck, readable_images
from tfaccel.errors import DataError
from tfaccel.short_repr import short_repr

MIN_IMAGE_SIZE = 8
MAX_IMAGE_SIZE = 512
MAX_DEFAULT_IMAGE_SIZE = 64


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


@dataclass(frozen=True)
class EncodedPart:
    """Encoded images and their labels.

    Args:
        images: the images.
        labels: the class index of each image, int64.
        name: `name(index)` names an image in messages.
        place: `place(index)` returns the file that holds an image, and its number there.
    """

    images: EncodedImages
    labels: np.ndarray
    name: Callable[[int], str]
    place: Callable[[int], tuple[str, int]]


class SomeImages(EncodedImages):
    """A subset of encoded images.

    Args:
        images: all images.
        rows: the indices of the subset, in order.
    """

    def __init__(self, images: EncodedImages, rows: np.ndarray) -> None:
        self._images, self._rows = images, rows

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, rows: np.ndarray) -> list[bytes]:
        """The bytes of the images with these indices."""
        return self._images.read(self._rows[rows])

    def identity(self) -> str:
        """A string that differs for different images."""
        return f"{self._images.identity()} {self._rows.tolist()}"


def default_image_size(headers: Sequence[ImageHeader]) -> int:
    """The median of the images' longer sides, at most 64 pixels.

    Example:
        >>> default_image_size([ImageHeader(20, 10), ImageHeader(9, 30), ImageHeader(90, 90)])
        30
    """
    median = int(np.median([header.longer_side for header in headers]))
    return min(max(median, MIN_IMAGE_SIZE), MAX_DEFAULT_IMAGE_SIZE)


def encoded_image_set(
    parts: Sequence[EncodedPart],
    class_names: Sequence[str],
    *,
    source: str,
    image_size: int | None,
    bad_data: BadData,
    num_files: int = 1,
) -> ImageSet:
    """The image set of a training and a test part, or of one part, of which a stratified fifth is held out for testing.

    Args:
        parts: one or two.
        class_names: a name for each class.
        source: where the images are from, for messages.
        image_size: height and width to resize images to; None for `default_image_size`.
        bad_data: what to do with images that cannot be decoded.
        num_files: files that the images come from.

    Raises:
        DataError: if an image cannot be read, or a class has too few images.
    """
    checked = [_readable(part, bad_data) for part in parts]
    parts = [part for part, _ in checked]
    headers = [header for _, of_part in checked for header in of_part]
    bad_data.finish(len(headers), "images", num_files=num_files)
    counts = np.bincount(parts[0].labels, minlength=len(class_names))
    least = 1 if len(parts) == 2 else 2
    if counts.min() < least:
        rarest = class_names[int(counts.argmin())]
        needed = "one, to train on" if least == 1 else "two, one to train on and one to test with"
        raise DataError(f"Class {rarest!r} of {source} must have at least {needed}. Received: {counts.min()}.")
    splits = [ImageSplit(part.images, part.labels) for part in parts]
    if len(parts) == 1:
        labels = parts[0].labels
        splits = [ImageSplit(SomeImages(parts[0].images, rows), labels[rows]) for rows in split_rows(labels)]
    return ImageSet(
        class_names=tuple(class_names),
        image_size=image_size or default_image_size(headers),
        num_channels=1 if all(header.is_grey for header in headers) else 3,
        num_train_images=len(splits[0].labels),
        num_test_images=len(splits[1].labels),
        load=lambda: (splits[0], splits[1]),
    )


def _readable(part: EncodedPart, bad_data: BadData) -> tuple[EncodedPart, list[ImageHeader]]:
    """The part without the images that cannot be decoded, and the headers of the others."""

    def read(number: int) -> bytes:
        return part.images.read(np.array([number]))[0]

    numbers = range(len(part.labels))
    images = [ImageToCheck(partial(read, number), part.name(number), *part.place(number)) for number in numbers]
    rows, headers = readable_images(images, bad_data)
    if len(rows) == len(images):
        return part, headers
    return EncodedPart(
        SomeImages(part.images, rows),
        part.labels[rows],
        lambda number: part.name(int(rows[number])),
        lambda number: part.place(int(rows[number])),
    ), headers
