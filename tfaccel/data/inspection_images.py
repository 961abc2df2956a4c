"""Inspection of images: broken files, sizes, copies, leaks, labels."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfaccel.data.image_arrays import read_image_arrays
from tfaccel.data.inspection import Examples, Finding, InspectionReport, Progress, no_progress
from tfaccel.data.inspection_checks import balance, copies, memory, part_sizes
from tfaccel.data.inspection_folders import LabelledFiles, read_labelled_files
from tfaccel.data.label_errors import probable_label_errors

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
_SMALL_SIZE = 16  # height and width, in pixels, to which images are brought for the classifier
_NUM_COMPONENTS = 40
_EVERY = 50  # images between two reports of progress


@dataclass(frozen=True)
class _Image:
    """What is kept of one image: a checksum of its pixels, its size and mode, and a small copy."""

    key: bytes
    shape: tuple[int, ...]
    small: np.ndarray


def inspect_image_files(path: Path, files: LabelledFiles, *, progress: Progress = no_progress) -> InspectionReport:
    """Inspects images in class folders; each file is decoded as a whole.

    Raises:
        DataError: if no file can be read.
    """
    images, rows, findings = read_labelled_files(
        files, path, _read_or_finding, noun="images", every=_EVERY, progress=progress
    )
    examples = Examples(
        tuple(str(files.paths[row]) for row in rows), files.parts[rows], tuple(image.key for image in images),
        files.labels[rows],
    )  # fmt: skip
    shapes = Counter(image.shape for image in images)
    findings += _mixed_shapes(shapes)
    small = np.stack([image.small for image in images])
    return _report(path, examples, small, shapes, findings=findings, progress=progress)


def _read_or_finding(file: Path) -> _Image | Finding:
    try:
        return _read(file)
    except Exception as error:  # Pillow's readers raise errors of many kinds for broken files.
        reason = "it is no image" if type(error).__name__ == "UnidentifiedImageError" else str(error)
        return Finding("unreadable file", str(file), reason, "Mend or remove it.")


def inspect_image_arrays(path: Path, *, progress: Progress = no_progress) -> InspectionReport:
    """Inspects the arrays of a `.npz` file with x_train, y_train, x_test and y_test.

    Raises:
        DataError: if the file cannot be read or its arrays are no labelled images.
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


def _read(file: Path) -> _Image:
    from PIL import Image

    with Image.open(file) as opened:
        opened.load()
        is_grey = opened.mode in ("1", "L", "LA", "I", "I;16")
        pixels = np.asarray(opened.convert("L" if is_grey else "RGB"))
        small = opened.convert("RGB").resize((_SMALL_SIZE, _SMALL_SIZE), Image.Resampling.BOX)
    shape = (*pixels.shape[:2], 1 if is_grey else 3)
    key = hashlib.sha1(repr(shape).encode() + pixels.tobytes()).digest()
    return _Image(key, shape, np.asarray(small, dtype=np.float32).reshape(-1) / 255)


def _small(array: np.ndarray) -> np.ndarray:
    """An image of shape (height, width, channels) as few numbers: every n-th pixel."""
    step = max(1, -(-max(array.shape[:2]) // (2 * _SMALL_SIZE)))
    return array[::step, ::step].astype(np.float32).reshape(-1)


def _mixed_shapes(shapes: Counter[tuple[int, ...]]) -> list[Finding]:
    if len(shapes) == 1:
        return []
    common = ", ".join(f"{count} of {'x'.join(map(str, shape))}" for shape, count in shapes.most_common(3))
    text = f"there are {len(shapes)} sizes (height x width x channels): {common}"
    return [Finding("mixed sizes", "images", text, "They are resized for training, whatever their shape.")]


def _report(
    path: Path, examples: Examples, small: np.ndarray, shapes: Counter[tuple[int, ...]], *, findings: list[Finding],
    progress: Progress,
) -> InspectionReport:  # fmt: skip
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    progress("Copies and leaks", 0, 1)
    findings += copies(examples)
    counts, weights, found = balance(examples)
    findings += found
    progress("Labels, by cross-validation", 0, 1)
    num_folds = 5
    num_components = min(_NUM_COMPONENTS, small.shape[1], len(small) * (num_folds - 1) // num_folds // 2)
    if num_components > 0:
        parts = [StandardScaler(), PCA(num_components, random_state=0), LogisticRegression(max_iter=1000)]
        findings += probable_label_errors(make_pipeline(*parts), small, examples)
    num_bytes = sum(count * int(np.prod(shape)) for shape, count in shapes.items())
    free, found = memory(num_bytes)
    return InspectionReport(
        path=str(path), kind="images", shape="x".join(map(str, shapes.most_common(1)[0][0])),
        num_examples=part_sizes(examples), class_counts=counts, class_weights=weights, num_bytes=num_bytes,
        memory_bytes=free, findings=tuple(findings + found),
    )  # fmt: skip
