"""`ImageSet`: labeled images, split into a training and a test part; from arrays, files, or encoded images.

`digits` are scikit-learn's 1,797 real images of handwritten digits, `few_digits` a few of some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.class_labels import split_rows
from tfaccel.data.images.image_check import ImageHeader, ImageToCheck, readable_images
from tfaccel.errors import DataError
from tfaccel.short_repr import noun

MIN_IMAGE_SIZE = 8
MAX_IMAGE_SIZE = 512
MAX_DEFAULT_IMAGE_SIZE = 64

_DIGIT_SIZE = 8
_NUM_TRAIN, _NUM_TEST = 1437, 360
_MAX_VALUE = 16  # of a pixel, which counts the ink pixels in a 4 x 4 block


@dataclass(frozen=True)
class EncodedImages:
    """Images as bytes of image files from any storage; read by index, from any thread.

    Args:
        read: `read(rows)` returns the bytes of the images with these indices.
        identity: `identity()` returns a string that differs for different images.
    """

    read: Callable[[np.ndarray], list[bytes]]
    identity: Callable[[], str]

    def content(self, row: int) -> bytes:
        """The bytes of one image."""
        return self.read(np.array([row]))[0]


@noun(kw_only=False)
class ImageSplit:
    """One part of an image set.

    Args:
        images: an array, uint8 or float32, of shape (num_images, height, width, channels); the names of image files; or
            encoded images.
        labels: the class index of each image; int64, of shape (num_images,).
    """

    images: np.ndarray | tuple[str, ...] | EncodedImages
    labels: np.ndarray


@noun
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
        images: the images, or the names of image files.
        labels: the class index of each image, int64.
        each: how each image is read, and where it is.
    """

    images: EncodedImages | tuple[str, ...]
    labels: np.ndarray
    each: Sequence[ImageToCheck]

    def rows(self, rows: np.ndarray) -> EncodedPart:
        """The images with these indices."""
        images = self.images
        if isinstance(images, tuple):
            chosen: EncodedImages | tuple[str, ...] = tuple(images[row] for row in rows)
        else:
            chosen = EncodedImages(
                lambda numbers: images.read(rows[numbers]), lambda: f"{images.identity()} {rows.tolist()}"
            )
        return EncodedPart(chosen, self.labels[rows], [self.each[row] for row in rows])

    def readable(self, bad_data: BadData) -> tuple[EncodedPart, list[ImageHeader]]:
        """The part without the images that cannot be decoded, and the headers of the others."""
        rows, headers = readable_images(self.each, bad_data)
        return (self if len(rows) == len(self.each) else self.rows(rows)), headers


def default_image_size(headers: Sequence[ImageHeader]) -> int:
    """The median of the images' longer sides, at most 64 pixels.

    Example:
        >>> default_image_size([ImageHeader(20, 10), ImageHeader(9, 30), ImageHeader(90, 90)])
        30
    """
    median = int(np.median([max(header.width, header.height) for header in headers]))
    return min(max(median, MIN_IMAGE_SIZE), MAX_DEFAULT_IMAGE_SIZE)


def encoded_image_set(
    parts: Sequence[EncodedPart],
    class_names: Sequence[str],
    *,
    source: str,
    image_size: int | None,
    bad_data: BadData,
    num_files: int = 1,
    if_one: Callable[[str], str] | None = None,
) -> ImageSet:
    """The image set of a training and a test part, or of one part, of which a stratified fifth is held out for testing.

    Args:
        parts: one or two.
        class_names: a name for each class.
        source: where the images are from, for messages.
        image_size: height and width to resize images to; None for `default_image_size`.
        bad_data: what to do with images that cannot be decoded.
        num_files: files that the images come from.
        if_one: the message for a class with one image, of which none can be held out; None for one of its own.

    Raises:
        DataError: if an image cannot be read, or a class has too few images.
    """
    checked = [part.readable(bad_data) for part in parts]
    parts = [part for part, _ in checked]
    headers = [header for _, of_part in checked for header in of_part]
    bad_data.finish(len(headers), "images", num_files=num_files)
    counts = np.bincount(parts[0].labels, minlength=len(class_names))
    least = 1 if len(parts) == 2 else 2
    if counts.min() < least:
        rarest = class_names[int(counts.argmin())]
        if counts.min() == 1 and if_one is not None:
            raise DataError(if_one(rarest))
        needed = "one, to train on" if least == 1 else "two, one to train on and one to test with"
        raise DataError(f"Class {rarest!r} of {source} must have at least {needed}. Received: {counts.min()}.")
    if len(parts) == 1:
        parts = [parts[0].rows(rows) for rows in split_rows(parts[0].labels)]
    train, test = (ImageSplit(part.images, part.labels) for part in parts)
    return ImageSet(
        class_names=tuple(class_names),
        image_size=image_size or default_image_size(headers),
        num_channels=1 if all(header.is_grey for header in headers) else 3,
        num_train_images=len(train.labels),
        num_test_images=len(test.labels),
        load=lambda: (train, test),
    )


def digits(image_size: int | None = None) -> ImageSet:
    """The digits 0 to 9 in 8x8 grayscale, in a stratified 80/20 split; loaded on first use.

    Args:
        image_size: height and width in pixels to resize them to; None for 8.

    Raises:
        DataError: if the size is not supported.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (its test set).

    Example:
        >>> digits().num_train_images
        1437
    """
    size = _DIGIT_SIZE if image_size is None else image_size
    check_image_size(size)
    return ImageSet(
        class_names=tuple("0123456789"),
        image_size=size,
        num_channels=1,
        num_train_images=_NUM_TRAIN,
        num_test_images=_NUM_TEST,
        load=_load_digits,
    )


def _load_digits() -> tuple[ImageSplit, ImageSplit]:
    from sklearn.datasets import load_digits

    data = load_digits()
    images = np.round(data.images * (255 / _MAX_VALUE)).astype(np.uint8)[..., np.newaxis]
    labels = data.target.astype(np.int64)
    train, test = split_rows(labels)
    return ImageSplit(images[train], labels[train]), ImageSplit(images[test], labels[test])


def few_digits(
    chosen: Sequence[int], *, examples_per_class: int | None = None, test_on_unused: bool = False
) -> ImageSet:
    """Some of the digits: the first training images of each, and all their test images.

    Args:
        chosen: which digits.
        examples_per_class: training images of each; None for all.
        test_on_unused: test on the unused training images instead of the test images, to tune hyperparameters.

    Raises:
        DataError: if there are fewer images.

    Example:
        >>> few_digits(range(5, 10), examples_per_class=20).num_train_images
        100
    """
    train, test = digits().load()
    rows = [np.flatnonzero(train.labels == digit)[:examples_per_class] for digit in chosen]
    if examples_per_class is not None and min(map(len, rows)) < examples_per_class:
        raise DataError(
            f"There are {min(map(len, rows))} training images of some digit. Received: "
            f"examples_per_class={examples_per_class}."
        )
    of_train = np.sort(np.concatenate(rows))
    of_test = np.flatnonzero(np.isin(test.labels, chosen))
    if test_on_unused:
        test, of_test = train, np.setdiff1d(np.flatnonzero(np.isin(train.labels, chosen)), of_train)
    parts = tuple(
        ImageSplit(np.asarray(part.images)[of], np.searchsorted(sorted(chosen), part.labels[of]))
        for part, of in ((train, of_train), (test, of_test))
    )
    names = tuple(str(digit) for digit in sorted(chosen))
    return replace(
        digits(),
        class_names=names,
        num_train_images=len(of_train),
        num_test_images=len(of_test),
        load=lambda: (parts[0], parts[1]),
    )
