"""Image sets from encoded images that are read by index: validated, and split if they come in one part."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfaccel.data.images.image_set import (
    MAX_DEFAULT_IMAGE_SIZE,
    MIN_IMAGE_SIZE,
    EncodedImages,
    ImageSet,
    ImageSplit,
    split_rows,
)
from tfaccel.errors import DataError

_FORMATS = ("PNG", "JPEG", "MPO")  # MPO: a JPEG followed by more images, as phones write it
_GREY_MODES = ("1", "L", "LA", "I", "I;16")
_NUM_CHECKING_THREADS = 8


@dataclass(frozen=True)
class ImageHeader:
    """What the header of an image file says.

    Args:
        longer_side: in pixels.
        is_grey: whether the image is grayscale.
    """

    longer_side: int
    is_grey: bool


@dataclass(frozen=True)
class EncodedPart:
    """Encoded images and their labels.

    Args:
        images: the images.
        labels: the class index of each image, int64.
        name: `name(index)` names an image in messages.
    """

    images: EncodedImages
    labels: np.ndarray
    name: Callable[[int], str]


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


def check_image(source: Path | bytes, name: str) -> ImageHeader:
    """Opens an image; PNG files are read to the end, JPEG files decoded at an eighth of their size.

    Raises:
        DataError: if it is not a PNG or JPEG image, or cannot be read; the message names it.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            if image.format not in _FORMATS:
                raise DataError(f"{name} must be a PNG or JPEG image. Received: {image.format}.")
            header = ImageHeader(max(image.size), image.mode in _GREY_MODES)
            if image.format == "PNG":
                image.verify()
            else:
                image.draft(None, (max(1, image.width // 8), max(1, image.height // 8)))
                image.load()
    except DataError:
        raise
    except Exception as error:  # Pillow raises errors of many kinds for corrupt files.
        reason = "it is not an image" if type(error).__name__ == "UnidentifiedImageError" else str(error)
        raise DataError(f"Cannot read the image {name}: {reason}. Repair or remove it.") from error
    return header


def check_images(sources: Sequence[tuple[Path, str]]) -> list[ImageHeader]:
    """The headers of (file, name) pairs, several opened in parallel; see `check_image`."""
    with ThreadPoolExecutor(_NUM_CHECKING_THREADS) as threads:
        return list(threads.map(lambda pair: check_image(*pair), sources))


def default_image_size(headers: Sequence[ImageHeader]) -> int:
    """The median of the images' longer sides, at most 64 pixels.

    Example:
        >>> default_image_size([ImageHeader(20, True), ImageHeader(30, True), ImageHeader(90, True)])
        30
    """
    median = int(np.median([header.longer_side for header in headers]))
    return min(max(median, MIN_IMAGE_SIZE), MAX_DEFAULT_IMAGE_SIZE)


def encoded_image_set(
    parts: Sequence[EncodedPart], class_names: Sequence[str], *, source: str, image_size: int | None
) -> ImageSet:
    """The image set of a training and a test part, or of one part, of which a stratified fifth is held out for testing.

    Args:
        parts: one or two.
        class_names: a name for each class.
        source: where the images are from, for messages.
        image_size: height and width to resize images to; None for `default_image_size`.

    Raises:
        DataError: if an image cannot be read, or a class has too few images.
    """
    counts = np.bincount(parts[0].labels, minlength=len(class_names))
    least = 1 if len(parts) == 2 else 2
    if counts.min() < least:
        rarest = class_names[int(counts.argmin())]
        needed = "one, to train on" if least == 1 else "two, one to train on and one to test with"
        raise DataError(f"Class {rarest!r} of {source} must have at least {needed}. Received: {counts.min()}.")
    headers = [header for part in parts for header in _headers(part)]
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


def _headers(part: EncodedPart) -> list[ImageHeader]:
    with ThreadPoolExecutor(_NUM_CHECKING_THREADS) as threads:
        return list(
            threads.map(
                lambda number: check_image(part.images.read(np.array([number]))[0], part.name(number)),
                range(len(part.labels)),
            )
        )
