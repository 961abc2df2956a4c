"""Images as bytes: checked without TensorFlow for whether it can decode them, and decoded by one function."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.errors import DataError

if TYPE_CHECKING:
    import tensorflow as tf


IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")  # as Keras reads them
_WITH_END = ("PNG", "JPEG", "MPO")  # MPO: a JPEG followed by more images, as phones write it
_FORMATS = (*_WITH_END, "BMP", "GIF", "WEBP")
_GREY_MODES = ("1", "L", "LA", "I", "I;16")
_NUM_CHECKING_THREADS = 8
_END_OF_PNG = b"\0\0\0\0IEND\xae\x42\x60\x82"  # the last chunk: its length, name and checksum
_START_OF_JPEG, _END_OF_JPEG = b"\xff\xd8", b"\xff\xd9"
_GREY_PALETTE = b"".join(bytes([level, level, level, 0]) for level in range(256))
_MAX_BMP_START = 2048  # bytes before the pixels
ORIENTATION = 0x112  # the EXIF tag
_FILL, _SCAN = 0xFF, 0xDA
_PLACE_IN_GRAPH = re.compile(r"\{\{.*?\}\} | \[Op:\w+\]| name: $")  # in TensorFlow's messages
_NEXT_MARKER = re.compile(rb"\xff(?![\x00\xd0-\xd7\xff])")  # in a scan; the others are data


@dataclass(frozen=True)
class ImageHeader:
    """What the header of an image file says.

    Args:
        width, height: in pixels, as stored.
        is_grey: whether the image is grayscale, and can be decoded to one channel.
        orientation: how it is shown, as EXIF numbers it: 1 as stored; from 5 on, width and height change places.
    """

    width: int
    height: int
    is_grey: bool = False
    orientation: int = 1


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
        DataError: if it is not an image of a known format, or cannot be read; the message names it.
    """
    from PIL import Image, ImageSequence

    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.format not in _FORMATS:
                raise DataError(f"{name} must be a PNG, JPEG, BMP, GIF or WebP image. Received: {image.format}.")
            kind = str(image.format)
            is_grey = kind in _WITH_END and image.mode in _GREY_MODES
            header = ImageHeader(*image.size, is_grey=is_grey, orientation=_orientation(content, kind))
            if kind == "BMP" and not _is_plain_bmp(content, image.mode, image.size):
                raise DataError(f"{name} is a BMP image that TensorFlow cannot decode. Save it with 24 bits per pixel.")
            if kind == "WEBP" and (getattr(image, "is_animated", False) or image.mode != "RGB"):
                raise DataError(f"TensorFlow cannot decode {name}, an animated or transparent WebP. Save it as PNG.")
            if kind == "PNG":
                image.verify()
            elif kind == "GIF":
                for frame in ImageSequence.Iterator(image):
                    frame.load()
            else:
                image.draft(None, (max(1, image.width // 8), max(1, image.height // 8)))
                image.load()
    except DataError:
        raise
    except Exception as error:  # Pillow raises errors of many kinds for corrupt files.
        reason = "it is not an image" if type(error).__name__ == "UnidentifiedImageError" else str(error)
        raise DataError(f"Cannot read the image {name}: {reason}. Repair or remove it.") from error
    if kind in _WITH_END and not is_complete(content):  # Pillow decodes such images all the same, TensorFlow does not.
        raise DataError(f"Cannot read the image {name}: it ends early. Repair or remove it.")
    return header


def _orientation(content: bytes, kind: str) -> int:
    """The EXIF orientation of an image; 1 if it has none."""
    from PIL import Image

    if kind not in ("PNG", "JPEG", "MPO", "WEBP") or (kind == "PNG" and b"eXIf" not in content):
        return 1
    try:
        with Image.open(io.BytesIO(content)) as image:
            found = image.getexif().get(ORIENTATION, 1)
    except Exception:  # EXIF data may be damaged in many ways; the pixels need not be.
        return 1
    return int(found) if found in range(2, 9) else 1


def _is_plain_bmp(content: bytes, mode: str, size: tuple[int, int]) -> bool:
    """Whether a BMP file has no palette of colors, is not compressed, and ends where its pixels end."""
    start, header_bytes, bits, compression = (
        int.from_bytes(content[i:j], "little") for i, j in ((10, 14), (14, 18), (28, 30), (30, 34))
    )
    if len(content) != start + (size[0] * bits // 8 + 3) // 4 * 4 * size[1]:
        return False
    has_known_bits = bits in (24, 32) or (bits == 8 and mode == "L")
    return header_bytes >= 40 and has_known_bits and compression in ((0, 3) if bits == 32 else (0,))


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


def decoded(content: Any, num_channels: int) -> tf.Tensor:
    """The pixels of an image, uint8, of shape (height, width, num_channels); also in graphs.

    As Keras decodes images: the first frame of an animation, the high byte of values of 16 bits, without transparency,
    and as stored, whatever the EXIF orientation says.

    Args:
        content: the bytes of the image, or a scalar tensor of them.
        num_channels: 1 (grayscale) or 3 (RGB).
    """
    import tensorflow as tf

    is_bmp = tf.equal(tf.strings.substr(content, 0, 2), b"BM")
    checked = tf.cond(is_bmp, lambda: _plain_bmp(content), lambda: tf.identity(content))
    return tf.io.decode_image(checked, channels=num_channels, expand_animations=False)


def _plain_bmp(content: tf.Tensor) -> tf.Tensor:
    """Fails for a BMP image with a palette, whose indices TensorFlow would take for levels of gray.

    The operation that fails converts a text to a number. An assertion would be stateful, and the tf.data service cannot
    serialize stateful operations.
    """
    import tensorflow as tf

    whole = tf.strings.join([content, bytes(_MAX_BMP_START)])  # a truncated one fails when it is decoded
    header_bytes, compression = (tf.io.decode_raw(tf.strings.substr(whole, at, 4), tf.int32)[0] for at in (14, 30))
    bits = tf.io.decode_raw(tf.strings.substr(whole, 28, 2), tf.uint16)[0]
    is_grey = tf.equal(tf.strings.substr(whole, 14 + header_bytes, len(_GREY_PALETTE)), _GREY_PALETTE)
    is_plain = (bits == 32) | ((compression == 0) & ((bits == 24) | ((bits == 8) & is_grey)))
    reason = "TensorFlow cannot decode this BMP image. Save it with 24 bits per pixel."
    return tf.cond(is_plain, lambda: tf.identity(content), lambda: tf.as_string(tf.strings.to_number(reason)))


def pixels(content: bytes, num_channels: int, *, name: str) -> np.ndarray:
    """The pixels of an image as an array; see `decoded`.

    Raises:
        DataError: if it cannot be decoded; the message names it.
    """
    import tensorflow as tf

    try:
        with tf.init_scope(), tf.device("/CPU:0"):
            return np.asarray(decoded(content, num_channels))
    except tf.errors.OpError as error:
        reason = _PLACE_IN_GRAPH.sub("", error.message)
        raise DataError(f"Cannot read the image {name}: {reason:.200}. Repair or remove it.") from error
