"""Image sets from users' data: a folder of image files for each class, a `.npz` file of arrays, and other sources."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.folder_files import class_folders, counted, files_below, part_folders, passed_over
from tfaccel.data.images.idx_files import find_idx_files, read_idx_arrays
from tfaccel.data.images.image_check import IMAGE_SUFFIXES, ImageToCheck
from tfaccel.data.images.image_set import (
    MAX_DEFAULT_IMAGE_SIZE,
    MIN_IMAGE_SIZE,
    EncodedPart,
    ImageSet,
    ImageSplit,
    check_image_size,
    encoded_image_set,
)
from tfaccel.data.images.tfrecords import read_tfrecord_images
from tfaccel.data.named_sets import HUGGING_FACE, TFDS, read_hugging_face_images, read_tfds_images
from tfaccel.data.stored_arrays import read_arrays
from tfaccel.data.tables.column_kinds import is_coarse
from tfaccel.data.tfrecord_files import find_tfrecords
from tfaccel.errors import DataError
from tfaccel.remote import readable_path

logger = logging.getLogger("tfaccel")

_NAMES = ("x_train", "y_train", "x_test", "y_test")


def read_image_set(
    data_dir: str | os.PathLike[str], *, image_size: int | None = None, bad_data: BadData | None = None
) -> ImageSet:
    """Reads and validates the images of a folder, a `.npz` file, IDX or TFRecord files or a named dataset.

    A folder has one sub-folder for each class, or `train` and `test` with one sub-folder for each class in both. Each
    holds PNG, JPEG, BMP or GIF files, also in folders below it; how many other files are passed over is logged.
    Without `test`, a stratified fifth of the images, always the same, is held out for testing. Every file is opened
    and checked here; pixels are read on use.

    A folder may hold the four IDX files of MNIST or Fashion-MNIST instead (`train-images-idx3-ubyte.gz` and so on), or
    TFRecord files; see `read_tfrecord_images`. "tfds:NAME" is a dataset of TensorFlow Datasets, "hf:NAME" one of
    Hugging Face; see `tfaccel.data.named_sets`.

    Args:
        data_dir: the folder or file, a pattern of TFRecord files such as `data/*.tfrecord`, or the name of a dataset.
        image_size: height and width in pixels to resize images to; None for the median of the images' longer sides,
            at most 64.
        bad_data: what to do with images that cannot be read; None for `BadData()`, which raises an error.

    Raises:
        DataError: if there is nothing to read, an image cannot be read (it is named) and is not left out, or there are
            fewer than two classes with images.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"):
        ...         Path(folder, name).parent.mkdir(exist_ok=True)
        ...         Image.new("RGB", (24, 16)).save(Path(folder, name))
        ...     images = read_image_set(folder)
        >>> images.class_names, images.image_size, images.num_channels, images.num_train_images
        (('cat', 'dog'), 24, 3, 2)
    """
    path, bad_data = readable_path(data_dir, DataError), bad_data or BadData()
    if image_size is not None:
        check_image_size(image_size)
    for start, read in ((TFDS, read_tfds_images), (HUGGING_FACE, read_hugging_face_images)):
        if str(data_dir).startswith(start):
            return read(str(data_dir), image_size=image_size, bad_data=bad_data)
    if find_tfrecords(path, bad_data):
        return read_tfrecord_images(path, image_size=image_size, bad_data=bad_data)
    if find_idx_files(path):
        return read_idx_images(path, image_size=image_size, bad_data=bad_data)
    if path.is_dir():
        return _read_folder(path, image_size, bad_data)
    if path.is_file() and path.suffix.lower() == ".npz":
        return read_image_arrays(path, image_size=image_size, bad_data=bad_data)
    if path.exists():
        raise DataError(f"`data_dir` must be a folder, TFRecord files or a .npz file. Received: {path}.")
    raise DataError(f"There is no folder or file {path} (`data_dir`).")


def _read_folder(folder: Path, image_size: int | None, bad_data: BadData) -> ImageSet:
    parts = part_folders(folder) or [folder]
    first = parts[0]
    classes = tuple(entry.name for entry in class_folders(first))
    if len(classes) < 2:
        found = f"one, {classes[0]!r}" if classes else "none"
        raise DataError(f"{first} must have one sub-folder for each class, at least two. Received: {found}.")
    listed = [_list_files(part, classes) for part in parts]
    used = [Path(image.file) for part in listed for image in part.each]
    others = passed_over(folder, used, IMAGE_SUFFIXES)
    if others:
        logger.warning(others)
    return encoded_image_set(
        listed,
        classes,
        source=str(folder),
        image_size=image_size,
        bad_data=bad_data,
        if_one=lambda name: (
            f"The class folder {folder / name} holds one image; it needs at least two, one to train on and one to test "
            "with."
        ),
    )


def _list_files(folder: Path, classes: tuple[str, ...]) -> EncodedPart:
    names: list[str] = []
    labels: list[int] = []
    unknown = sorted({entry.name for entry in class_folders(folder)} - set(classes))
    if unknown:
        raise DataError(f"{folder} has the class {unknown[0]!r}, which the training images do not have.")
    for label, name in enumerate(classes):
        every = files_below(folder / name) if (folder / name).is_dir() else []
        found = [file for file in every if file.suffix.lower() in IMAGE_SUFFIXES]
        if not found:
            received = f" Received: {counted(every)}." if every else ""
            raise DataError(
                f"The class folder {folder / name} holds no image: no file that ends in {', '.join(IMAGE_SUFFIXES)}."
                f"{received}"
            )
        names += map(str, found)
        labels += [label] * len(found)
    each = [ImageToCheck(Path(name).read_bytes, name, name) for name in names]
    return EncodedPart(tuple(names), np.array(labels, dtype=np.int64), each)


def read_image_arrays(path: Path, *, image_size: int | None = None, bad_data: BadData | None = None) -> ImageSet:
    """Reads and validates the image set in a `.npz` file.

    Integers from 0 to 255 are kept as pixel values. Other finite values are kept too, and standardized with the mean
    and standard deviation of the training images.

    Args:
        path: the file. x_train and x_test have shape (num_images, height, width) or (num_images, height, width,
            channels) with 1 or 3 channels; y_train and y_test hold each image's class as an integer or string.
        image_size: height and width to resize images to; None to use the longer side, at most 64.
        bad_data: what to do with images that hold NaN or infinity. A damaged file is always an error.

    Raises:
        DataError: if the file cannot be read, an array has another form, or float32 is too coarse for its numbers.

    Example:
        >>> import tempfile
        >>> images, labels = np.zeros((4, 12, 12), np.uint8), ["cat", "dog", "cat", "dog"]
        >>> with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        ...     np.savez(file.name, x_train=images, y_train=labels, x_test=images, y_test=labels)
        ...     read_image_arrays(Path(file.name)).class_names
        ('cat', 'dog')
    """
    try:
        arrays = read_arrays(path)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise DataError(f"Cannot read {path}: {error}. Write it with numpy.savez.") from error
    missing = [name for name in _NAMES if name not in arrays]
    if missing:
        raise DataError(
            f"{path} must hold the arrays {', '.join(_NAMES)}. Missing: {', '.join(missing)}. "
            f"Received: {', '.join(filter(None, arrays)) or 'none'}."
        )
    return _array_set(arrays, path, image_size, bad_data or BadData())


def read_idx_images(folder: Path, *, image_size: int | None = None, bad_data: BadData | None = None) -> ImageSet:
    """Reads and validates the image set in the four IDX files of a folder, named as those of MNIST.

    Args:
        folder: the folder.
        image_size, bad_data: as in `read_image_arrays`.

    Raises:
        DataError: if a file is missing, damaged, or does not fit the others.
    """
    return _array_set(read_idx_arrays(folder), folder, image_size, bad_data or BadData())


def _array_set(arrays: dict[str, np.ndarray], path: Path, image_size: int | None, bad_data: BadData) -> ImageSet:
    """The image set of the arrays x_train, y_train, x_test and y_test of a file or folder."""
    x_train, x_test = (_images(arrays[name], f"{name} in {path}") for name in ("x_train", "x_test"))
    if x_train.shape[1:] != x_test.shape[1:]:
        raise DataError(
            f"x_train and x_test in {path} must hold images of one shape. "
            f"Received: {x_train.shape[1:]} and {x_test.shape[1:]}."
        )
    classes, y_train, y_test = _labels(arrays, path)
    given = {"train": (x_train, y_train), "test": (x_test, y_test)}
    for part, (x, y) in given.items():
        if len(x) != len(y):
            raise DataError(f"In {path}, x_{part} holds {len(x)} images, but y_{part} {len(y)} labels.")
    finite = (_finite(x, y, path, f"x_{part}", bad_data) for part, (x, y) in given.items())
    (x_train, y_train), (x_test, y_test) = finite
    bad_data.finish(len(x_train) + len(x_test), "images")
    pixels_are_bytes = x_train.dtype == x_test.dtype == np.uint8
    if not pixels_are_bytes:
        x_train, x_test = _as_float32(x_train, f"x_train in {path}"), _as_float32(x_test, f"x_test in {path}")
    parts = ImageSplit(x_train, y_train), ImageSplit(x_test, y_test)
    longer_side = max(x_train.shape[1:3])
    scaling = {}
    if not pixels_are_bytes:
        scale = float(x_train.std(dtype=np.float64)) or 1.0  # all pixels may be equal
        scaling = {"pixel_mean": float(x_train.mean()), "pixel_scale": scale}
    return ImageSet(
        class_names=classes,
        image_size=image_size or min(max(longer_side, MIN_IMAGE_SIZE), MAX_DEFAULT_IMAGE_SIZE),
        num_channels=x_train.shape[3],
        num_train_images=len(x_train),
        num_test_images=len(x_test),
        load=lambda: parts,
        **scaling,
    )


def _images(array: np.ndarray, name: str) -> np.ndarray:
    """Images of shape (num_images, height, width, channels), as uint8 if that is lossless."""
    if array.ndim == 3:
        array = array[..., np.newaxis]
    if array.ndim != 4 or array.shape[3] not in (1, 3) or 0 in array.shape:
        raise DataError(
            f"{name} must have the shape (num_images, height, width) or (num_images, height, width, channels) with 1 "
            f"or 3 channels, and at least one image. Received: shape {array.shape}."
        )
    if array.dtype.kind not in "buif":
        raise DataError(f"{name} must hold numbers. Received: {array.dtype}.")
    if array.dtype.kind in "ui" and array.min() >= 0 and array.max() <= 255:
        return array.astype(np.uint8, copy=False)
    return array


def _as_float32(images: np.ndarray, name: str) -> np.ndarray:
    """Images as float32, in which models take them."""
    with np.errstate(over="ignore"):
        single = images.astype(np.float32)
    if np.can_cast(images.dtype, np.float32):
        return single
    if not np.isfinite(single).all():
        raise DataError(
            f"{name} has the number {images[~np.isfinite(single)][0]:g}, which float32 cannot hold. Scale it."
        )
    mean, deviation = images.mean(dtype=np.float64), images.std(dtype=np.float64)
    if is_coarse(np.abs(images - single.astype(np.float64)), float(deviation)):
        raise DataError(
            f"The numbers of {name} are around {mean:.3g} and vary by {deviation:.3g}: float32, in which models take "
            f"them, is too coarse for them. Subtract a constant from the images, such as {mean:.3g}."
        )
    return single


def _finite(
    images: np.ndarray, labels: np.ndarray, path: Path, name: str, bad_data: BadData
) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels, without images that hold NaN or infinity."""
    if images.dtype.kind != "f":
        return images, labels
    finite = np.isfinite(images).all(axis=(1, 2, 3))
    for image in np.flatnonzero(~finite).tolist():
        error = DataError(f"{name} in {path} holds NaN or infinity, first in image {image} (from 0).")
        bad_data.found(error, f"{path} ({name})", image)
    return (images, labels) if finite.all() else (images[finite], labels[finite])


def _labels(arrays: dict[str, np.ndarray], path: Path) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """The class names, and the labels as class indices."""
    labels = []
    for name in ("y_train", "y_test"):
        given = arrays[name]
        found = given[:, 0] if given.ndim == 2 and given.shape[1] == 1 else given
        if found.ndim != 1 or found.dtype.kind not in "buiU":
            raise DataError(
                f"{name} in {path} must hold one whole number or text for each image. "
                f"Received: {found.dtype}, shape {found.shape}."
            )
        labels.append(found)
    classes, train = np.unique(labels[0], return_inverse=True)
    if len(classes) < 2:
        raise DataError(f"y_train in {path} must name at least two classes. Received: {', '.join(map(str, classes))}.")
    unknown = np.setdiff1d(labels[1], classes)
    if len(unknown):
        raise DataError(f"y_test in {path} has the class {unknown[0]}, which y_train does not have.")
    test = np.searchsorted(classes, labels[1])
    return tuple(map(str, classes)), train.astype(np.int64), test.astype(np.int64)
