"""scikit-learn's digits as an image set: 1,797 real images of handwritten digits; all of them, or a few of some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tfaccel.data.class_labels import split_rows
from tfaccel.data.images.image_set import ImageSet, ImageSplit, check_image_size
from tfaccel.errors import DataError

_IMAGE_SIZE = 8
_NUM_TRAIN, _NUM_TEST = 1437, 360
_MAX_VALUE = 16  # of a pixel, which counts the ink pixels in a 4 x 4 block


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
    size = _IMAGE_SIZE if image_size is None else image_size
    check_image_size(size)
    return ImageSet(
        class_names=tuple("0123456789"),
        image_size=size,
        num_channels=1,
        num_train_images=_NUM_TRAIN,
        num_test_images=_NUM_TEST,
        load=_load,
    )


def _load() -> tuple[ImageSplit, ImageSplit]:
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
