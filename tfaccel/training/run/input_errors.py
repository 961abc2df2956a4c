"""Replaces TensorFlow's errors about unreadable input by one that names the file."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfaccel.data.bad_data import BadData
from tfaccel.data.images.image_check import ImageToCheck, pixels, readable_images
from tfaccel.data.images.image_set import EncodedImages, ImageSet, ImageSplit
from tfaccel.errors import DataError
from tfaccel.planning.workload import Workload

_ERRORS = (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError)
_RECORD = re.compile(r"(corrupted|truncated) record at \d+")  # the offset in the file, in bytes
_CHANGED = "It could be read when the run started, and was changed or removed since."


@contextlib.contextmanager
def input_errors_named(workload: Workload) -> Iterator[None]:
    """Within the block, TensorFlow's errors about damaged input become a `DataError`.

    Args:
        workload: its image files are checked again, to find the one that has changed.

    Raises:
        DataError: in place of TensorFlow's error.
    """
    try:
        yield
    except _ERRORS as error:
        if isinstance(error, tf.errors.DataLossError):
            record = _RECORD.search(str(error.message))
            message = record[0] if record else " ".join(str(error.message).split())
            raise DataError(
                f"A file of the dataset of {workload.name!r} is damaged: {message:.200}. TensorFlow does not say "
                "which; `tfaccel.data.read_image_set` does. Write or copy it again. (`ignore_errors()` would silently "
                "drop the rest of the file.)"
            ) from error
        images = getattr(workload.data, "source", None)
        if isinstance(images, ImageSet):
            for part in images.load():
                _check_again(part)
        raise


def _check_again(part: ImageSplit) -> None:
    """Raises DataError if a file of images cannot be read any more."""
    source = part.images
    if isinstance(source, tuple):
        images = [ImageToCheck(Path(path).read_bytes, path, path) for path in source]
    elif isinstance(source, EncodedImages):
        images = [
            ImageToCheck(partial(_content, source, row), f"number {row} (from 0)", "", row)
            for row in range(len(source))
        ]
    else:
        return
    bad_data = BadData("skip")
    try:
        readable_images(images, bad_data)
        reason = next((entry["reason"] for entry in bad_data.to_json()["files"].values()), "")
    except DataError as error:
        reason = str(error)
    if reason:
        raise DataError(f"{reason} {_CHANGED}")
    for image in images:  # what only decoding tells, such as a PNG file that was damaged before its checksums were made
        pixels(image.read(), 3, name=image.name)


def _content(images: EncodedImages, row: int) -> bytes:
    return images.read(np.array([row]))[0]
