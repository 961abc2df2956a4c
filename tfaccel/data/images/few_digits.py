"""A few examples of some digits: a small target task for transfer learning from other digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tfaccel.data.images.digits import digits
from tfaccel.data.images.image_set import ImageSet, ImageSplit
from tfaccel.errors import DataError


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
