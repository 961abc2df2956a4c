"""Inspection of images: unreadable files, sizes, duplicates, leaks, labels."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfaccel.data.images.arrays import read_image_arrays
from tfaccel.data.images.image_check import ImageHeader, check_image
from tfaccel.errors import DataError
from tfaccel.extras.inspection.checks import balance, copies, memory, part_sizes
from tfaccel.extras.inspection.findings import Examples, Finding, InspectionReport, Progress, no_progress
from tfaccel.extras.inspection.folders import LabelledFiles, read_labelled_files
from tfaccel.extras.inspection.label_errors import probable_label_errors

_SMALL_SIZE = 16  # height and width, in pixels, of the images for the classifier
_NUM_TREES = 200
_NUM_ANGLES, _NUM_CELLS = 8, 4  # orientation bins of edges, and cells along each side
_EVERY = 50  # images between two progress reports


@dataclass(frozen=True)
class SmallImage:
    """The data kept of one image: its header, a checksum of its pixels, its shape, and a thumbnail."""

    header: ImageHeader
    key: bytes
    shape: tuple[int, ...]
    small: np.ndarray


def inspect_image_files(path: Path, files: LabelledFiles, *, progress: Progress = no_progress) -> InspectionReport:
    """Inspects images in class folders; each file is decoded in full.

    Raises:
        DataError: if no file can be read.
    """
    images, rows, findings = read_labelled_files(
        files, path, read_or_finding, noun="images", every=_EVERY, progress=progress
    )
    examples = Examples(
        tuple(str(files.paths[row]) for row in rows),
        files.parts[rows],
        tuple(image.key for image in images),
        files.labels[rows],
    )
    shapes = Counter(image.shape for image in images)
    findings += _mixed_shapes(shapes)
    small = np.stack([image.small for image in images])
    return _report(path, examples, small, shapes, findings=findings, progress=progress)


def read_or_finding(file: Path) -> SmallImage | Finding:
    """The data kept of an image, or a finding if it cannot be read."""
    try:
        return _read(file)
    except (OSError, DataError) as error:
        reason = str(error).removeprefix(f"Cannot read the image {file}: ").removesuffix(". Repair or remove it.")
        return Finding("unreadable file", str(file), reason, "Repair or remove it.")


def inspect_image_arrays(path: Path, *, progress: Progress = no_progress) -> InspectionReport:
    """Inspects the arrays of a `.npz` file with x_train, y_train, x_test and y_test.

    Raises:
        DataError: if the file cannot be read or its arrays are not labeled images.
    """
    images = read_image_arrays(path)
    splits = dict(zip(("train", "test"), images.load(), strict=True))
    names, keys, small, labels = [], [], [], []
    for part, split in splits.items():
        arrays = np.asarray(split.images)
        progress(f"Images to {part}", 0, len(arrays))
        names += [f"image {row} of x_{part}" for row in range(len(arrays))]
        keys += [hashlib.sha1(array.tobytes()).digest() for array in arrays]
        small += [_small(array) for array in arrays]
        labels += [images.class_names[label] for label in split.labels]
    parts = np.array([part for part, split in splits.items() for _ in split.labels])
    examples = Examples(tuple(names), parts, tuple(keys), np.array(labels, dtype=object))
    shape = np.asarray(splits["train"].images).shape[1:]
    return _report(path, examples, np.stack(small), Counter({shape: len(names)}), findings=[], progress=progress)


def _read(file: Path) -> SmallImage:
    from PIL import Image

    from tfaccel.data.images.decoding import pixels

    content = file.read_bytes()
    header = check_image(content, str(file))
    array = pixels(content, 1 if header.is_grey else 3, name=str(file))
    thumbnail = Image.fromarray(array[..., 0] if header.is_grey else array).convert("RGB")
    small = thumbnail.resize((_SMALL_SIZE, _SMALL_SIZE), Image.Resampling.BOX)
    key = hashlib.sha1(repr(array.shape).encode() + array.tobytes()).digest()
    return SmallImage(header, key, array.shape, np.asarray(small, dtype=np.float32).reshape(-1) / 255)


def _small(array: np.ndarray) -> np.ndarray:
    """A flattened thumbnail of an image of shape (height, width, channels)."""
    from PIL import Image

    channels = [Image.fromarray(array[..., place].astype(np.float32)) for place in range(array.shape[-1])]
    size = (_SMALL_SIZE, _SMALL_SIZE)
    small = np.stack([np.asarray(one.resize(size, Image.Resampling.BOX)) for one in channels], axis=-1)
    last = small.shape[-1] - 1
    return small[..., [0, min(1, last), min(2, last)]].reshape(-1)


def _edges(small: np.ndarray) -> np.ndarray:
    """The strength of edges of each orientation, in each cell of the thumbnails and in whole thumbnails."""
    grey = small.reshape(len(small), _SMALL_SIZE, _SMALL_SIZE, 3).mean(axis=-1)
    down, right = np.gradient(grey, axis=(1, 2))
    strength = np.hypot(right, down)
    angle = np.arctan2(down, right) % np.pi / np.pi * _NUM_ANGLES
    lower = np.floor(angle).astype(int) % _NUM_ANGLES
    share = angle - np.floor(angle)
    parts = [
        strength * ((lower == one) * (1 - share) + ((lower + 1) % _NUM_ANGLES == one) * share)
        for one in range(_NUM_ANGLES)
    ]
    side = _SMALL_SIZE // _NUM_CELLS
    cells = np.stack(parts, axis=1).reshape(len(small), _NUM_ANGLES, _NUM_CELLS, side, _NUM_CELLS, side).sum((3, 5))
    whole = cells.sum(axis=(2, 3))
    cells = cells.reshape(len(small), -1)
    norms = np.linalg.norm(cells, axis=1, keepdims=True), whole.sum(axis=1, keepdims=True)
    return np.concatenate([cells / (norms[0] + 1e-3), whole / (norms[1] + 1e-3)], axis=1)


def _mixed_shapes(shapes: Counter[tuple[int, ...]]) -> list[Finding]:
    if len(shapes) == 1:
        return []
    common = ", ".join(f"{count} of {'x'.join(map(str, shape))}" for shape, count in shapes.most_common(3))
    text = f"there are {len(shapes)} sizes (height x width x channels): {common}"
    return [Finding("mixed sizes", "images", text, "They are resized for training, whatever their shape.")]


def _report(
    path: Path,
    examples: Examples,
    small: np.ndarray,
    shapes: Counter[tuple[int, ...]],
    *,
    findings: list[Finding],
    progress: Progress,
) -> InspectionReport:
    from sklearn.ensemble import ExtraTreesClassifier

    progress("Copies and leaks", 0, 1)
    findings += copies(examples)
    counts, weights, found = balance(examples)
    findings += found
    progress("Labels, by cross-validation", 0, 1)
    classifier = ExtraTreesClassifier(_NUM_TREES, random_state=0)
    findings += probable_label_errors(classifier, np.concatenate([small, _edges(small)], axis=1), examples)
    num_bytes = sum(count * int(np.prod(shape)) for shape, count in shapes.items())
    free, found = memory(num_bytes)
    return InspectionReport(
        path=str(path),
        kind="images",
        shape="x".join(map(str, shapes.most_common(1)[0][0])),
        num_examples=part_sizes(examples),
        class_counts=counts,
        class_weights=weights,
        num_bytes=num_bytes,
        memory_bytes=free,
        findings=tuple(findings + found),
    )
