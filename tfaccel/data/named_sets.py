"""Images and texts of TensorFlow Datasets, and of Hugging Face's `datasets` library.

A child process prepares a TensorFlow Dataset, and its TFRecord files are then read here: TensorFlow must not start
before the runtime is set up, and importing the package's builders starts it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.class_labels import LabelledTexts, labelled_texts, numbered_classes, train_and_test
from tfaccel.data.images.image_check import ImageToCheck
from tfaccel.data.images.image_set import EncodedImages, EncodedPart, ImageSet, encoded_image_set
from tfaccel.data.images.tfrecords import ImageFeatures, read_tfrecord_images
from tfaccel.data.private_pipelines import fingerprint
from tfaccel.data.tfrecord_files import RecordIndex, decode_example
from tfaccel.errors import DataError
from tfaccel.processes.child import ProcessError, run_program

TFDS = "tfds:"

_DESCRIBE = """
import json, sys
import tensorflow_datasets as tfds

try:
    builder = tfds.builder(sys.argv[1])
    builder.download_and_prepare()
    features, form = builder.info.features, builder.info.file_format
    described = {
        "kinds": {name: type(feature).__name__ for name, feature in sorted(features.items())},
        "names": {name: feature.names for name, feature in features.items() if hasattr(feature, "names")},
        "files": {name: [str(path) for path in split.filepaths] for name, split in builder.info.splits.items()},
        "format": form.value if form else "tfrecord",
    }
except Exception as error:
    described = {"error": (str(error).strip() or repr(error)).splitlines()[0]}
print(json.dumps(described))
"""

HUGGING_FACE = "hf:"
_LABELS = ("label", "labels", "fine_label", "class")
_IMAGES = ("image", "img", "picture")


def read_tfds_images(name: str, *, image_size: int | None = None, bad_data: BadData | None = None) -> ImageSet:
    """Reads and validates the images of a dataset.

    The split `train` is used for training and `test` or `validation` for testing; without them a stratified fifth is
    held out for testing.

    Args:
        name: "tfds:NAME" or "tfds:NAME:CONFIG", with the names of `tensorflow_datasets`; the dataset is downloaded and
            prepared if needed, in `TFDS_DATA_DIR` or the home folder.
        image_size: height and width in pixels to resize images to; None for `default_image_size`.
        bad_data: what to do with damaged records and images.

    Raises:
        DataError: if `tensorflow-datasets` is not installed, the dataset does not exist, or it has no labeled images.
    """
    described = _describe(name)
    image, label = _feature(described, "Image", name), _feature(described, "ClassLabel", name)
    files = [[Path(file) for file in part] for part in _files(described, name)]
    return read_tfrecord_images(
        files,
        image_size=image_size,
        class_names=described["names"][label],
        features=ImageFeatures(image, label, ""),
        bad_data=bad_data,
    )


def read_tfds_texts(
    name: str, *, text_column: str = "text", label_column: str = "label", bad_data: BadData | None = None
) -> LabelledTexts:
    """The texts of a dataset and their classes.

    Args:
        name: as for `read_tfds_images`.
        text_column, label_column: the features with texts and classes.
        bad_data: what to do with damaged records.

    Raises:
        DataError: if `tensorflow-datasets` is not installed, the dataset does not exist, or it lacks the features.
    """
    described, bad_data, num_files = _describe(name), bad_data or BadData(), 0
    for column in (text_column, label_column):
        if column not in described["kinds"]:
            raise DataError(f"{name} must have a feature {column!r}. Received: {', '.join(described['kinds'])}.")
    texts: list[list[str]] = []
    labels: list[list[int | str]] = []
    for part in _files(described, name):
        index = RecordIndex.of([Path(file) for file in part], bad_data)
        num_files += len(part)
        examples = [decode_example(index.read(row)) for row in range(len(index))]
        texts.append([example[text_column][0].decode(errors="replace") for example in examples])
        labels.append([_label(example[label_column][0]) for example in examples])
    bad_data.finish(sum(map(len, texts)), "texts", num_files=num_files)
    names, rows = numbered_classes(labels, name, described["names"].get(label_column))
    return labelled_texts(names, texts, rows, name)


def _check_package(package: str, name: str, *, extra: str) -> None:
    if importlib.util.find_spec(package.replace("-", "_")) is None:
        raise DataError(
            f"Reading {name} needs the package {package}, which is not installed. Run: pip install 'tfaccel[{extra}]'."
        )


def _label(value: Any) -> int | str:
    return value.decode(errors="replace") if isinstance(value, bytes) else int(value)


def _describe(name: str) -> dict[str, Any]:
    """Prepares a dataset; returns the types of its features, its class names and the files of its splits."""
    _check_package("tensorflow-datasets", name, extra="tfds")
    dataset, _, config = name.removeprefix(TFDS).partition(":")
    address = f"{dataset}/{config}" if config else dataset
    try:
        written = run_program([sys.executable, "-c", _DESCRIBE, address], environment={"CUDA_VISIBLE_DEVICES": "-1"})
    except ProcessError as error:
        raise DataError(f"Reading {name} with tensorflow-datasets failed: {error}") from error
    described: dict[str, Any] = json.loads(written.splitlines()[-1])
    if "error" in described:
        raise DataError(f"Cannot prepare {name} with the package tensorflow-datasets: {described['error']}")
    if described["format"] != "tfrecord":
        raise DataError(
            f"{name} is stored in the format {described['format']}. Prepare it again as TFRecord files "
            "(`tfds build --file_format=tfrecord`)."
        )
    return described


def _feature(described: dict[str, Any], kind: str, name: str) -> str:
    """The first feature of that kind."""
    found = [feature for feature, its_kind in described["kinds"].items() if its_kind == kind]
    if not found:
        kinds = ", ".join(f"{feature} ({its_kind})" for feature, its_kind in described["kinds"].items())
        raise DataError(f"{name} must have a feature of the kind {kind}. Received: {kinds}.")
    return found[0]


def _files(described: dict[str, Any], name: str) -> list[list[str]]:
    return [described["files"][split] for split in train_and_test(list(described["files"]), name)]


def read_hugging_face_images(name: str, *, image_size: int | None = None, bad_data: BadData | None = None) -> ImageSet:
    """Validates all images of a dataset; they stay where `datasets` keeps them.

    The split `train` is used for training and `test` or `validation` for testing; without them a stratified fifth is
    held out for testing. The image is the column of type Image, the class the column `label` (or `labels`,
    `fine_label`, `class`).

    Args:
        name: "hf:NAME" or "hf:NAME:CONFIG", where NAME is what `datasets.load_dataset` takes, or a folder that
            `save_to_disk` wrote.
        image_size: height and width in pixels to resize images to; None for `default_image_size`.
        bad_data: what to do with images that cannot be decoded.

    Raises:
        DataError: if `datasets` is not installed, the dataset does not exist, or it has no images or classes.
    """
    splits = _load(name)
    import datasets

    first = splits[0]
    images = [column for column, kind in first.features.items() if isinstance(kind, datasets.Image)]
    image = next((column for column in _IMAGES if column in images), images[0] if images else None)
    label = next((column for column in _LABELS if column in first.features), None)
    if image is None or label is None:
        raise _missing_columns(name, "a column of the type Image, and a column 'label'", first)
    names, labels = _classes(splits, label, name)
    parts = [_image_part(split, image, rows, name) for split, rows in zip(splits, labels, strict=True)]
    return encoded_image_set(parts, names, source=name, image_size=image_size, bad_data=bad_data or BadData())


def read_hugging_face_texts(name: str, *, text_column: str = "text", label_column: str = "label") -> LabelledTexts:
    """The texts of a dataset and their classes.

    The splits are chosen as in `read_hugging_face_images`.

    Args:
        name: as for `read_hugging_face_images`.
        text_column, label_column: the columns of texts and classes.

    Raises:
        DataError: if `datasets` is not installed, the dataset does not exist, or it lacks the columns.
    """
    splits = _load(name)
    for split in splits:
        if text_column not in split.features or label_column not in split.features:
            raise _missing_columns(name, f"columns {text_column!r} and {label_column!r}", split)
    names, labels = _classes(splits, label_column, name)
    return labelled_texts(names, [list(split[text_column]) for split in splits], labels, name)


def _image_part(split: Any, column: str, labels: np.ndarray, source: str) -> EncodedPart:
    """A column of images, encoded."""
    import datasets

    encoded = split.cast_column(column, datasets.Image(decode=False)).select_columns(column)
    images = EncodedImages(
        lambda rows: [_bytes(value) for value in encoded[rows.tolist()][column]],
        lambda: f"{fingerprint(encoded)} {column}",
    )
    rows = range(len(labels))
    each = [
        ImageToCheck(partial(images.content, row), f"in row {row} (from 0) of {source}", source, row) for row in rows
    ]
    return EncodedPart(images, labels, each)


def _bytes(value: Mapping[str, Any] | None) -> bytes:
    if value is None:
        return b""  # rejected later as not an image, with its row
    if value["bytes"] is not None:
        content: bytes = value["bytes"]
        return content
    return Path(value["path"]).read_bytes()


def _load(name: str) -> list[Any]:
    """The parts of a dataset."""
    _check_package("datasets", name, extra="huggingface")
    import datasets

    address = name.removeprefix(HUGGING_FACE)
    dataset, _, config = address.partition(":")
    try:
        if (Path(dataset) / "dataset_dict.json").exists() or (Path(dataset) / "state.json").exists():
            loaded = datasets.load_from_disk(dataset)
        else:
            loaded = datasets.load_dataset(dataset, config or None)
    except Exception as error:  # network, file and third-party errors of many kinds
        raise DataError(f"Cannot load {name} with the package datasets: {error}") from error
    if isinstance(loaded, datasets.Dataset):
        return [loaded]
    return [loaded[split] for split in train_and_test(list(loaded), name)]


def _classes(splits: Sequence[Any], label: str, source: str) -> tuple[tuple[str, ...], list[np.ndarray]]:
    """The class names, and the class index of each row of each part."""
    names = getattr(splits[0].features[label], "names", None)
    return numbered_classes([list(split[label]) for split in splits], source, names)


def _missing_columns(source: str, wanted: str, split: Any) -> DataError:
    return DataError(f"{source} must have {wanted}. Received columns: {', '.join(split.features)}.")
