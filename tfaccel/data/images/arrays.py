"""Image sets from a `.npz` file with the arrays x_train, y_train, x_test and y_test."""

from pathlib import Path

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.images.image_set import MAX_DEFAULT_IMAGE_SIZE, MIN_IMAGE_SIZE, ImageSet, ImageSplit
from tfaccel.data.stored_arrays import read_arrays
from tfaccel.errors import DataError

_NAMES = ("x_train", "y_train", "x_test", "y_test")


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
        DataError: if the file cannot be read, or an array has another form.

    Example:
        >>> import tempfile
        >>> images, labels = np.zeros((4, 12, 12), np.uint8), ["cat", "dog", "cat", "dog"]
        >>> with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        ...     np.savez(file.name, x_train=images, y_train=labels, x_test=images, y_test=labels)
        ...     read_image_arrays(Path(file.name)).class_names
        ('cat', 'dog')
    """
    arrays, bad_data = _read(path), bad_data or BadData()
    x_train, x_test = (_images(arrays[name], f"{name} in {path}") for name in ("x_train", "x_test"))
    if x_train.shape[1:] != x_test.shape[1:]:
        raise DataError(
            f"x_train and x_test in {path} must hold images of one shape. "
            f"Received: {x_train.shape[1:]} and {x_test.shape[1:]}."
        )
    classes, y_train, y_test = _labels(arrays, path)
    for x, y, part in ((x_train, y_train, "train"), (x_test, y_test, "test")):
        if len(x) != len(y):
            raise DataError(f"In {path}, x_{part} holds {len(x)} images, but y_{part} {len(y)} labels.")
    (x_train, y_train), (x_test, y_test) = (
        _finite(x, y, path, f"x_{part}", bad_data)
        for x, y, part in ((x_train, y_train, "train"), (x_test, y_test, "test"))
    )
    bad_data.finish(len(x_train) + len(x_test), "images")
    pixels_are_bytes = x_train.dtype == x_test.dtype == np.uint8
    if not pixels_are_bytes:
        x_train, x_test = x_train.astype(np.float32), x_test.astype(np.float32)
    parts = ImageSplit(x_train, y_train), ImageSplit(x_test, y_test)
    longer_side = max(x_train.shape[1:3])
    scaling = {} if pixels_are_bytes else {"pixel_mean": float(x_train.mean()), "pixel_scale": _spread(x_train)}
    return ImageSet(
        class_names=classes,
        image_size=image_size or min(max(longer_side, MIN_IMAGE_SIZE), MAX_DEFAULT_IMAGE_SIZE),
        num_channels=x_train.shape[3],
        num_train_images=len(x_train),
        num_test_images=len(x_test),
        load=lambda: parts,
        **scaling,
    )


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        found = read_arrays(path)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise DataError(f"Cannot read {path}: {error}. Write it with numpy.savez.") from error
    missing = [name for name in _NAMES if name not in found]
    if missing:
        raise DataError(
            f"{path} must hold the arrays {', '.join(_NAMES)}. Missing: {', '.join(missing)}. "
            f"Received: {', '.join(filter(None, found)) or 'none'}."
        )
    return found


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
    labels = [arrays[name] for name in ("y_train", "y_test")]
    for index, name in enumerate(("y_train", "y_test")):
        if labels[index].ndim == 2 and labels[index].shape[1] == 1:
            labels[index] = labels[index][:, 0]
        if labels[index].ndim != 1 or labels[index].dtype.kind not in "buiU":
            raise DataError(
                f"{name} in {path} must hold one whole number or text for each image. "
                f"Received: {labels[index].dtype}, shape {labels[index].shape}."
            )
    classes, train = np.unique(labels[0], return_inverse=True)
    if len(classes) < 2:
        raise DataError(f"y_train in {path} must name at least two classes. Received: {', '.join(map(str, classes))}.")
    unknown = np.setdiff1d(labels[1], classes)
    if len(unknown):
        raise DataError(f"y_test in {path} has the class {unknown[0]}, which y_train does not have.")
    test = np.searchsorted(classes, labels[1])
    return tuple(map(str, classes)), train.astype(np.int64), test.astype(np.int64)


def _spread(images: np.ndarray) -> float:
    """The standard deviation, or 1 if all pixels are equal."""
    return float(images.std(dtype=np.float64)) or 1.0
