"""The digits, and the split that never changes."""

import sys

import numpy as np
import pytest

from tfaccel.data.class_labels import split_rows
from tfaccel.data.images.image_set import check_image_size, digits
from tfaccel.errors import DataError


def test_digits_are_what_they_say():
    images = digits()
    train, test = images.load()
    assert train.images.shape == (images.num_train_images, 8, 8, 1)
    assert test.images.shape == (images.num_test_images, 8, 8, 1)
    assert images.num_train_images + images.num_test_images == 1797
    assert (train.images.dtype, train.images.min(), train.images.max()) == (np.uint8, 0, 255)
    assert set(train.labels) == set(test.labels) == set(range(len(images.class_names)))


def test_digits_are_split_by_class_without_overlap():
    train, test = digits().load()
    shares = np.bincount(test.labels) / (np.bincount(test.labels) + np.bincount(train.labels))
    assert np.abs(shares - 0.2).max() < 0.005
    again = digits().load()[1]
    assert np.array_equal(test.images, again.images)


def test_describing_the_digits_reads_nothing(run_python):
    run_python(
        """
import sys
from tfaccel.data.images.image_set import digits
digits()
sys.exit("sklearn" in sys.modules)
""",
        fresh=True,
    )
    assert sys.modules.get("tfaccel.data.images.image_set")


def test_split_keeps_the_shares_of_classes():
    labels = np.array([0] * 40 + [1] * 10 + [2] * 5)
    train, test = split_rows(labels)
    assert sorted([*train, *test]) == list(range(55))
    assert np.bincount(labels[train]).tolist() == [32, 8, 4]
    assert np.array_equal(split_rows(labels)[0], train)


def test_split_of_many_small_classes_tests_each():
    labels = np.repeat(np.arange(6), 2)
    train, test = split_rows(labels)
    assert sorted(labels[train]) == sorted(labels[test]) == list(range(6))


@pytest.mark.parametrize("size", [7, 513, 8.0, True, "8"])
def test_size_that_cannot_be_is_refused(size):
    with pytest.raises(DataError, match=r"`image_size` must be a whole number from 8 to 512 pixels\. Received: "):
        check_image_size(size)
