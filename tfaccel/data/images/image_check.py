"""Whether PNG and JPEG images can be decoded, found out without TensorFlow."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.errors import DataError

_FORMATS = ("PNG", "JPEG", "MPO")  # MPO: a JPEG followed by more images, as phones write it
_GREY_MODES = ("1", "L", "LA", "I", "I;16")
_NUM_CHECKING_THREADS = 8
_END_OF_PNG = b"\0\0\0\0IEND\xae\x42\x60\x82"  # the last chunk: its length, name and checksum
_START_OF_JPEG, _END_OF_JPEG = b"\xff\xd8", b"\xff\xd9"
_FILL, _SCAN = 0xFF, 0xDA
_NEXT_MARKER = re.compile(rb"\xff(?![\x00\xd0-\xd7\xff])")  # in a scan; the others are data


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
class ImageToCheck:
    """An encoded image.

    Args:
        read: `read()` returns its bytes.
        name: what it is called in messages.
        file: the file that it is in.
        place: its number in the file; None if it is the file.
    """

    read: Callable[[], bytes]
    name: str
    file: str
    place: int | None = None


def check_image(content: bytes, name: str) -> ImageHeader:
    """Checks the bytes of an image: PNG files to the end; JPEG files are decoded at an eighth of their size.

    Raises:
        DataError: if it is not a PNG or JPEG image, or cannot be read; the message names it.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
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
    if not is_complete(content):  # Pillow decodes such images all the same, TensorFlow does not.
        raise DataError(f"Cannot read the image {name}: it ends early. Repair or remove it.")
    return header


def is_complete(content: bytes) -> bool:
    r"""Whether a PNG file has its last chunk, or a JPEG file its end: no segment and no scan goes on to the file's end.

    Example:
        >>> is_complete(b"\xff\xd8\xff\xda\0\2scan\xff\xd9"), is_complete(b"\xff\xd8\xff\xda\0\2scan")
        (True, False)
    """
    if not content.startswith(_START_OF_JPEG):
        return _END_OF_PNG in content
    place = len(_START_OF_JPEG)
    while content[place : place + 2] != _END_OF_JPEG:
        if place + 4 > len(content):
            return False
        if content[place] != _FILL:
            return True  # bytes between two segments, which decoders pass over
        marker = content[place + 1]
        if marker == _FILL:
            place += 1
            continue
        place += 2 + int.from_bytes(content[place + 2 : place + 4], "big")
        if marker == _SCAN:
            end = _NEXT_MARKER.search(content, place)
            if end is None:
                return False
            place = end.start()
    return True


def readable_images(images: Sequence[ImageToCheck], bad_data: BadData) -> tuple[np.ndarray, list[ImageHeader]]:
    """Checks images, several in parallel.

    Args:
        images: the images.
        bad_data: what to do with those that cannot be decoded.

    Returns:
        The indices of the images that can be decoded, and their headers.

    Raises:
        DataError: for an image that cannot be decoded, unless it is left out; or if a file cannot be read at all,
            because of its permissions for example, which may be different on another worker.
    """
    with ThreadPoolExecutor(_NUM_CHECKING_THREADS) as threads:
        found = list(threads.map(_header_or_error, images))
    rows, headers = [], []
    for row, (image, header) in enumerate(zip(images, found, strict=True)):
        if isinstance(header, DataError):
            bad_data.found(header, image.file, image.place)
        else:
            rows.append(row)
            headers.append(header)
    return np.array(rows, np.int64), headers


def _header_or_error(image: ImageToCheck) -> ImageHeader | DataError:
    try:
        content = image.read()
    except OSError as error:
        raise DataError(f"Cannot read the image {image.name}: {error.strerror or error}.") from error
    try:
        return check_image(content, image.name)
    except DataError as error:
        return error
