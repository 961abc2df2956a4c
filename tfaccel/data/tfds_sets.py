"""Images and texts of TensorFlow Datasets.

A child process prepares the dataset, and its TFRecord files are then read here: TensorFlow must not start before the
runtime is set up, and importing the package's builders starts it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from tfaccel.data.bad_data import BadData
from tfaccel.data.class_labels import numbered_classes, train_and_test
from tfaccel.data.example_message import decode_example
from tfaccel.data.images.image_set import ImageSet
from tfaccel.data.images.tfrecords import ImageFeatures, read_tfrecord_images
from tfaccel.data.texts.labelled_texts import LabelledTexts, labelled_texts
from tfaccel.data.tfrecord_files import RecordIndex
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


def _label(value: Any) -> int | str:
    return value.decode(errors="replace") if isinstance(value, bytes) else int(value)


def _describe(name: str) -> dict[str, Any]:
    """Prepares a dataset; returns the types of its features, its class names and the files of its splits."""
    if importlib.util.find_spec("tensorflow_datasets") is None:
        raise DataError(
            f"Reading {name} needs the package tensorflow-datasets, which is not installed. Run: pip install "
            "'tfaccel[tfds]'."
        )
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
