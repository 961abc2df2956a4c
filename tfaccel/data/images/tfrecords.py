"""Images from TFRecord files, read by record index."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.class_labels import numbered_classes
from tfaccel.data.images.image_check import ImageToCheck
from tfaccel.data.images.image_set import EncodedImages, EncodedPart, ImageSet, encoded_image_set
from tfaccel.data.tfrecord_files import RecordIndex, decode_example, find_tfrecords
from tfaccel.errors import DataError

_PART = re.compile(r"(?:^|[-_.])(train|test|validation|val)(?=[-_.])")
_TRAIN, _TEST = "train", ("test", "validation", "val")


@dataclass(frozen=True)
class ImageFeatures:
    """The names of the features of an example that hold an image and its class.

    Args:
        image: the bytes of an image file (PNG, JPEG, BMP, GIF or WebP).
        label: the class as an integer, or "" for none.
        text: the name of the class, or "" for none.
    """

    image: str = "image/encoded"
    label: str = "image/class/label"
    text: str = "image/class/text"


FEATURES = (ImageFeatures(), ImageFeatures("image", "label", ""))  # TensorFlow's convention; TensorFlow Datasets'


def _image_part(index: RecordIndex, feature: str, labels: np.ndarray) -> EncodedPart:
    """The images in a feature of the records of TFRecord files."""
    images = EncodedImages(
        lambda rows: [decode_example(index.read(int(row)))[feature][0] for row in rows],
        lambda: f"{index.identity()} {feature}",
    )
    rows = range(len(index))
    each = [ImageToCheck(partial(images.content, row), index.name(row), *index.place(row)) for row in rows]
    return EncodedPart(images, labels, each)


def read_tfrecord_images(
    place: str | os.PathLike[str] | Sequence[Sequence[Path]],
    *,
    image_size: int | None = None,
    class_names: Sequence[str] | None = None,
    features: ImageFeatures | None = None,
    bad_data: BadData | None = None,
) -> ImageSet:
    """The images of TFRecord files; every record is read and validated.

    A record is a `tf.train.Example` with an encoded image and its class, under the names of `ImageFeatures` or
    those of TensorFlow Datasets (`image`, `label`). If some file names contain train and the others test (or
    validation), those are the parts; otherwise a stratified fifth of the images is held out for testing.

    Random access to records means exact shuffling: each worker reads only its own records, and a resumed run skips
    the records before its position without reading them.

    Args:
        place: a folder, a pattern such as `data/*.tfrecord`, or one file; or the files of each part.
        image_size: height and width in pixels to resize images to; None for `default_image_size`.
        class_names: a name for each label; None for the text stored with the label, or the label itself.
        features: the features of a record that hold image and class; None to detect them as above.
        bad_data: what to do with damaged records and images, and empty or missing files.

    Raises:
        DataError: if a record is corrupt (file and record are named) or has no image or class, unless it is left out;
            or if classes do not match.

    Example:
        >>> import io, tempfile
        >>> from PIL import Image
        >>> from tfaccel.data.tfrecord_files import write_tfrecords
        >>> picture = io.BytesIO()
        >>> Image.new("L", (12, 10)).save(picture, "PNG")
        >>> example = {"image/encoded": picture.getvalue(), "image/class/text": "cat"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = write_tfrecords(2 * [example, {**example, "image/class/text": "dog"}], folder)
        ...     images = read_tfrecord_images(folder)
        >>> images.class_names, images.image_size, images.num_train_images
        (('cat', 'dog'), 12, 2)
    """
    bad_data = bad_data or BadData()
    if isinstance(place, str | os.PathLike):
        source, files = str(place), _parts(str(place), find_tfrecords(place, bad_data))
    else:
        source, files = (
            ", ".join(sorted({str(path.parent) for part in place for path in part})),
            [list(part) for part in place],
        )
    indexes = [RecordIndex.of(part, bad_data) for part in files]
    num_files = sum(map(len, files))
    if not all(map(len, indexes)):
        raise DataError(f"The TFRecord files of {source} must hold records. Received: a part without any.")
    features = features or _features(indexes[0], bad_data)
    found: list[list[tuple[int | str, str]]] = []
    for part, index in enumerate(indexes):
        read = [bad_data.tried(partial(_label, index, row, features), *index.place(row)) for row in range(len(index))]
        found.append([pair for pair in read if pair is not None])
        indexes[part] = index.kept(np.array([row for row, pair in enumerate(read) if pair is not None], np.int64))
    labels: list[list[int | str]] = [[label for label, _ in part] for part in found]
    if class_names is None:
        labels = _named(found)
    names, numbers = numbered_classes(labels, source, class_names)
    parts = [_image_part(index, features.image, rows) for index, rows in zip(indexes, numbers, strict=True)]
    return encoded_image_set(parts, names, source=source, image_size=image_size, bad_data=bad_data, num_files=num_files)


def _parts(place: str, paths: list[Path]) -> list[list[Path]]:
    """The training files and the test files, or all files as one part."""
    if not paths:
        raise DataError(f"There is no TFRecord file at {place}. Their names end in .tfrecord.")
    groups: dict[str, list[Path]] = {}
    for path in paths:
        match = _PART.search(path.name)
        groups.setdefault(match[1] if match else "", []).append(path)
    if len(groups) == 1:
        return [paths]
    held_out = next((word for word in _TEST if word in groups), "")
    if "" in groups or _TRAIN not in groups:
        raise DataError(f"Of the TFRecord files of {place}, only some are named train or test. Name all, or none.")
    return [groups[_TRAIN], groups[held_out]]


def _features(index: RecordIndex, bad_data: BadData) -> ImageFeatures:
    """The features that the first record has; or, if damage is left out, the first record with an image and a class."""
    there: dict[str, Any] = {}
    for row in range(len(index) if bad_data.skips else 1):
        example = bad_data.tried(partial(_example, index, row), *index.place(row)) or {}
        for features in FEATURES:
            if features.image in example and (features.label in example or features.text in example):
                return features
        there = there or example
    wanted = FEATURES[0]
    raise DataError(
        f"The {index.name(0)} must have the features {wanted.image!r} and {wanted.label!r} (or {wanted.text!r}). "
        f"Received: {', '.join(there) or 'none'}."
    )


def _example(index: RecordIndex, row: int) -> dict[str, Any]:
    try:
        return decode_example(index.read(row))
    except DataError as error:
        raise DataError(f"Cannot read the {index.name(row)}: {error}") from error


def _label(index: RecordIndex, row: int, features: ImageFeatures) -> tuple[int | str, str]:
    """The class in a record: an integer (or its text if there is none), and a text."""
    example = _example(index, row)
    images, labels, texts = (example.get(name, []) for name in (features.image, features.label, features.text))
    if len(labels) > 1 or len(texts) > 1:
        raise DataError(
            f"The {index.name(row)} has {max(len(labels), len(texts))} classes in "
            f"{(features.label if len(labels) > 1 else features.text)!r}; an image must have one."
        )
    try:
        text = texts[0].decode() if texts and isinstance(texts[0], bytes) else ""
    except UnicodeDecodeError as error:
        name = index.name(row)
        raise DataError(f"The name of the class in the {name} is not UTF-8. Received: {texts[0]!r:.80}.") from error
    label = labels[0] if labels else text
    if len(images) != 1 or not isinstance(images[0], bytes) or not isinstance(label, int | str) or label == "":
        raise DataError(
            f"The {index.name(row)} must have one image in {features.image!r}, and its class in "
            f"{features.label!r} or {features.text!r}. Received: {', '.join(example) or 'nothing'}."
        )
    return label, text


def _named(parts: list[list[tuple[int | str, str]]]) -> list[list[int | str]]:
    """The text of each example's class if all have one; otherwise its integer."""
    pairs = {pair for part in parts for pair in part}
    if len({type(label) for label, _ in pairs}) > 1:
        raise DataError("The class must be a number in every example, or a text in every one, in TFRecord files.")
    if not all(text for _, text in pairs):
        return [[label for label, _ in part] for part in parts]
    if not len({label for label, _ in pairs}) == len({text for _, text in pairs}) == len(pairs):
        raise DataError("Every number of a class must have one text, and every text one number, in TFRecord files.")
    return [[text for _, text in part] for part in parts]
