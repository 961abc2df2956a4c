"""Images from `.npz` files: what is read, and one clear message for everything that cannot be."""

import re

import numpy as np
import pytest

from tfaccel.data.images.files import read_image_set
from tfaccel.errors import DataError


def arrays(**changes):
    rng = np.random.default_rng(0)
    usual = {
        "x_train": rng.integers(0, 256, (6, 9, 12), dtype=np.uint8),
        "y_train": np.array([5, 7, 5, 7, 7, 5]),
        "x_test": rng.integers(0, 256, (2, 9, 12), dtype=np.uint8),
        "y_test": np.array([7, 5]),
    }
    return {**usual, **changes}


@pytest.fixture
def read(tmp_path):
    """A function that writes arrays to a file and reads them as an image set."""

    def write_and_read(changed=None, **options):
        np.savez(tmp_path / "data.npz", **(arrays() if changed is None else changed))
        return read_image_set(tmp_path / "data.npz", **options)

    return write_and_read


def test_bytes_are_pixels_and_labels_are_numbered(read):
    images = read()
    train, test = images.load()
    assert images.class_names == ("5", "7")
    assert (images.image_size, images.num_channels) == (12, 1)
    assert (images.num_train_images, images.num_test_images) == (6, 2)
    assert np.array_equal(train.images[..., 0], arrays()["x_train"])
    assert (train.images.dtype, train.labels.dtype) == (np.uint8, np.int64)
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 1, 0, 1, 1, 0], [1, 0])


def test_whole_numbers_of_other_types_are_bytes_too(read):
    train, _ = read(arrays(x_train=arrays()["x_train"].astype(np.int64))).load()
    assert train.images.dtype == np.uint8


def test_other_numbers_keep_their_values_and_say_their_scale(read):
    x_train = np.random.default_rng(0).normal(50.0, 20.0, (6, 9, 12, 3))
    images = read(arrays(x_train=x_train, x_test=x_train[:2]))
    train, test = images.load()
    assert (images.num_channels, train.images.dtype, test.images.dtype) == (3, np.float32, np.float32)
    assert np.allclose(train.images, x_train)
    assert images.pixel_mean == pytest.approx(x_train.mean())
    assert images.pixel_scale == pytest.approx(x_train.std())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x / 100 + 1e9, r"x_train in .* are around 1e\+09 and vary by 0\.\d+: float32, in which models take"),
        (lambda x: x.astype(np.int64) + 2**30, r"x_train in .* are around 1\.07e\+09 and .* Subtract a constant from"),
        (lambda x: x * 1e300, r"x_train in .* has the number .*e\+30\d, which float32 cannot hold\. Scale it\."),
    ],
)
def test_numbers_that_float32_would_merge_are_refused(read, change, message):
    usual = arrays()
    with pytest.raises(DataError, match=message):
        read(arrays(x_train=change(usual["x_train"]), x_test=change(usual["x_test"])))


def test_bytes_beside_other_numbers_become_floats(read):
    train, test = read(arrays(x_train=arrays()["x_train"] * 1.5)).load()
    assert train.images.dtype == test.images.dtype == np.float32


def test_images_without_contrast_have_a_scale(read):
    assert read(arrays(x_train=np.full((6, 9, 12), 0.5))).pixel_scale == 1.0


def test_names_of_classes_and_columns_of_labels(read):
    images = read(arrays(y_train=np.array(list("abaabb")), y_test=np.array(["b", "a"])))
    assert images.class_names == ("a", "b")
    assert images.load()[1].labels.tolist() == [1, 0]
    assert read(arrays(y_train=arrays()["y_train"][:, None])).class_names == ("5", "7")


def test_size_is_bounded_or_chosen(read):
    large = np.zeros((6, 100, 90), np.uint8)
    assert read(arrays(x_train=large, x_test=large[:2])).image_size == 64
    assert read(arrays(x_train=large, x_test=large[:2]), image_size=96).image_size == 96
    assert read(arrays(x_train=large[:, :4, :4], x_test=large[:2, :4, :4])).image_size == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((6, 9))}, "x_train in {path} must have the shape"),
        ({"x_test": np.zeros((2, 3, 9, 12))}, "must have the shape (num_images, height, width)"),
        ({"x_train": np.zeros((0, 9, 12))}, "at least one image. Received: shape (0, 9, 12, 1)"),
        ({"x_train": np.zeros((6, 9, 12), complex)}, "must hold numbers. Received: complex128"),
        ({"x_test": np.zeros((2, 8, 8))}, "must hold images of one shape. Received: (9, 12, 1) and (8, 8, 1)"),
        ({"y_train": np.zeros(5, int) + [0, 1, 1, 1, 1], "y_test": np.array([0, 1])}, "6 images, but y_train 5 labels"),
        ({"y_train": np.zeros(6)}, "must hold one whole number or text for each image. Received: float64"),
        ({"y_train": np.eye(6, dtype=int)}, "Received: int64, shape (6, 6)"),
        ({"y_train": np.full(6, 3)}, "must name at least two classes. Received: 3."),
        ({"y_test": np.array([5, 9])}, "y_test in {path} has the class 9, which y_train does not have."),
    ],
)
def test_arrays_that_do_not_fit_are_refused(read, tmp_path, changes, message):
    with pytest.raises(DataError, match=re.escape(message.format(path=tmp_path / "data.npz"))):
        read(arrays(**changes))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_image_with_a_number_that_is_none_is_named(read, bad):
    x_test = np.zeros((2, 9, 12))
    x_test[1, 3, 3] = bad
    with pytest.raises(DataError, match=r"x_test in .* holds NaN or infinity, first in image 1 \(from 0\)\."):
        read(arrays(x_test=x_test))


def test_missing_arrays_are_named(read):
    changed = arrays()
    changed["labels"] = changed.pop("y_test")
    with pytest.raises(DataError, match=r"Missing: y_test\. Received: x_train, y_train, x_test, labels\."):
        read(changed)


@pytest.mark.parametrize("content", [b"", b"no arrays", b"PK\x03\x04 cut off"])
def test_file_that_is_no_npz_is_refused(tmp_path, content):
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"Cannot read .*data\.npz: .* Write it with numpy\.savez\."):
        read_image_set(tmp_path / "data.npz")


def test_pickled_objects_are_not_loaded(read):
    with pytest.raises(DataError, match="Cannot read"):
        read(arrays(y_train=np.array([{}] * 6, dtype=object)))
