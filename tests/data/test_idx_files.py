"""IDX files, as MNIST is published in them: read as the arrays that they hold, or refused by name."""

import bz2
import gzip
import struct

import numpy as np
import pytest

from tfaccel.data import read_image_set
from tfaccel.data.images.idx_files import read_idx
from tfaccel.errors import DataError
from tfaccel.extras.inspection.inspect_data import inspect_data

RANDOM = np.random.default_rng(0)
X_TRAIN, X_TEST = (RANDOM.integers(0, 256, (num, 10, 10), np.uint8) for num in (12, 6))
Y_TRAIN, Y_TEST = np.arange(12, dtype=np.uint8) % 3, np.arange(6, dtype=np.uint8) % 3
CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def idx(array):
    kind = array.dtype.str[1:]
    head = struct.pack(f">HBB{array.ndim}I", 0, CODES[kind], array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(X_TRAIN), mtime=0))
    (tmp_path / "train-labels.idx1-ubyte").write_bytes(idx(Y_TRAIN))
    (tmp_path / "t10k-images-idx3-ubyte.bz2").write_bytes(bz2.compress(idx(X_TEST)))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(Y_TEST))
    return tmp_path


def test_compressed_or_not_they_are_the_arrays_of_an_image_set(folder):
    images = read_image_set(folder)
    assert (images.class_names, images.image_size, images.num_channels) == (("0", "1", "2"), 10, 1)
    train, test = images.load()
    np.testing.assert_array_equal(np.asarray(train.images)[..., 0], X_TRAIN)
    np.testing.assert_array_equal(np.asarray(test.images)[..., 0], X_TEST)
    assert (train.labels.tolist(), test.labels.tolist()) == (Y_TRAIN.tolist(), Y_TEST.tolist())


def test_an_uncompressed_copy_beside_a_file_is_the_same_file(folder):
    (folder / "train-images-idx3-ubyte").write_bytes(idx(X_TRAIN))
    assert read_image_set(folder).num_train_images == 12


def test_they_are_inspected(folder):
    (folder / "t10k-images-idx3-ubyte.bz2").write_bytes(bz2.compress(idx(X_TRAIN[:6])))
    report = inspect_data(folder)
    assert sum(finding.kind == "leak" for finding in report.findings) == 6


@pytest.mark.parametrize("kind", sorted(CODES))
def test_every_type_of_number(tmp_path, kind):
    array = np.array([[1, -2, 100]], kind) if kind != "u1" else np.array([[1, 2, 255]], kind)
    (tmp_path / "numbers").write_bytes(idx(array))
    found = read_idx(tmp_path / "numbers")
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an IDX file: it begins with nothing"),
        (b"\0\0\x0a\1\0\0\0\1x", "is not an IDX file: it begins with 00 00 0a 01"),
        (b"\0\0\x08\0", "is not an IDX file"),
        (idx(X_TRAIN)[:-1], r"is damaged: its header says 1,200 bytes of shape \(12, 10, 10\), and 1,199 follow"),
        (idx(X_TRAIN) + b"x", "and 1,201 follow"),
        (idx(X_TRAIN)[:9], "is damaged"),
        (gzip.compress(idx(X_TRAIN), mtime=0)[:-30], "Cannot read .*train-images-idx3-ubyte"),
        (None, "has IDX files, but none of the images to train with. Four are needed"),
        (idx(X_TRAIN[:5]), "x_train holds 5 images, but y_train 12 labels"),
        (idx(X_TRAIN[0]), "x_train in .* must have the shape"),
    ],
)
def test_files_that_are_damaged_or_missing_are_named(folder, content, message):
    (folder / "train-images-idx3-ubyte.gz").unlink()
    if content is not None:
        (folder / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_image_set(folder)


def test_two_sets_in_one_folder_are_refused(folder):
    (folder / "emnist-letters-train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(X_TEST), mtime=0))
    with pytest.raises(DataError, match="has two files of the images to train with: emnist-letters-train-images"):
        read_image_set(folder)
