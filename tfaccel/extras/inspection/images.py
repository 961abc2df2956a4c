"""Inspection of images, also with boxes: unreadable files, invalid entries, sizes, duplicates, leaks, labels."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.data.coco_files import TURNED, are_numbers, check_ids, has_area, image_file, is_crowd, orientation_of_boxes
from tfaccel.data.images.files import read_idx_images, read_image_arrays
from tfaccel.data.images.image_check import IMAGE_SUFFIXES, ImageHeader, check_image, pixels
from tfaccel.errors import DataError
from tfaccel.extras.inspection.findings import (
    Examples,
    Finding,
    InspectionReport,
    Progress,
    finished,
    no_progress,
    probable_label_errors,
    read_labelled_files,
)
from tfaccel.processes.quiet_start import quiet_tensorflow

_SMALL_SIZE = 16  # height and width, in pixels, of the images for the classifier
_NUM_TREES = 200
_NUM_ANGLES, _NUM_CELLS = 8, 4  # orientation bins of edges, and cells along each side
_EVERY = 50  # images between two progress reports

_LISTS = ("images", "annotations", "categories")
_NAMES = {"train": ("train.json", "instances_train*.json"), "test": ("test.json", "val.json", "instances_val*.json")}
_SLACK = 1.0  # pixels by which a box may exceed its image: annotation tools round


@dataclass(frozen=True)
class SmallImage:
    """The data kept of one image: its header, a checksum of its pixels, its shape, and a thumbnail."""

    header: ImageHeader
    key: bytes
    shape: tuple[int, ...]
    small: np.ndarray


def inspect_image_files(path: Path, *, progress: Progress = no_progress) -> InspectionReport:
    """Inspects images in class folders; each file is decoded in full.

    Raises:
        DataError: if no file can be read.
    """
    examples, images, findings = read_labelled_files(
        path, IMAGE_SUFFIXES, read_or_finding, noun="images", every=_EVERY, progress=progress
    )
    examples = replace(examples, keys=tuple(image.key for image in images))
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
    """Inspects the arrays of a `.npz` file with x_train, y_train, x_test and y_test, or of a folder of IDX files.

    Raises:
        DataError: if a file cannot be read or its arrays are not labeled images.
    """
    images = read_idx_images(path) if path.is_dir() else read_image_arrays(path)
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

    quiet_tensorflow()  # which decodes the image
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
    def doubt_labels() -> list[Finding]:
        from sklearn.ensemble import ExtraTreesClassifier

        classifier = ExtraTreesClassifier(_NUM_TREES, random_state=0)
        return probable_label_errors(classifier, np.concatenate([small, _edges(small)], axis=1), examples)

    report = InspectionReport(
        path=str(path),
        kind="images",
        shape="x".join(map(str, shapes.most_common(1)[0][0])),
        num_bytes=_num_bytes(shapes),
        findings=tuple(findings),
    )
    return finished(report, examples, doubt_labels=doubt_labels, progress=progress)


def _num_bytes(shapes: Counter[tuple[int, ...]]) -> int:
    return sum(count * int(np.prod(shape)) for shape, count in shapes.items())


def coco_files(folder: Path) -> dict[str, Path]:
    """Part -> the file with its annotations; empty for a folder of another kind."""
    found: dict[str, Path] = {}
    for part, patterns in _NAMES.items():
        for place in (folder, folder / "annotations"):
            files = sorted(path for pattern in patterns for path in place.glob(pattern))
            if files and part not in found:
                found[part] = files[0]
    if "train" not in found:
        alone = [*sorted(folder.glob("*.json")), *sorted((folder / "annotations").glob("*.json"))]
        found = dict([("train", path) for path in alone if _is_coco(path)][:1])
    return found if all(_is_coco(path) for path in found.values()) else {}


def inspect_coco(folder: Path, files: Mapping[str, Path], *, progress: Progress = no_progress) -> InspectionReport:
    """Inspects images with boxes.

    Args:
        folder: holds the images, also in its sub-folders `images`, `train`, `val` and `test`.
        files: part -> the file with its annotations.
        progress: called with the current state.
    """
    findings: list[Finding] = []
    images: list[SmallImage] = []
    names, parts, boxes, labels, box_parts = [], [], [], [], []
    for part, path in files.items():
        content = json.loads(path.read_text(encoding="utf-8"))
        for name in _LISTS:
            check_ids(name, _entries(content, name), path)
        with_boxes = {entry.get("image_id") for entry in _entries(content, "annotations")}
        classes = {entry.get("id"): str(entry.get("name")) for entry in _entries(content, "categories")}
        known = {entry.get("id"): entry for entry in _entries(content, "images")}
        sizes = {}
        for number, (key, entry) in enumerate(known.items()):
            if number % _EVERY == 0:
                progress(f"Images to {part}", number, len(known))
            file = image_file(folder, path, str(entry.get("file_name")))
            read = (
                read_or_finding(file)
                if file
                else Finding("missing file", str(entry.get("file_name")), f"{path.name} names it, but it is not there")
            )
            if isinstance(read, Finding):
                findings.append(read)
            else:
                sizes[key] = _size(entry, read, str(file), findings, has_boxes=key in with_boxes)
                images.append(read)
                names.append(str(file))
                parts.append(part)
        drawn = list(_boxes(content, path.name, known, classes, sizes, findings))
        without = len(known) - len({key for key, _, _ in drawn})
        if without:
            text = f"{without} of {len(known)} images have no box"
            findings.append(Finding("images without boxes", path.name, text, "They count as background."))
        labels += [name for _, name, _ in drawn]
        box_parts += [part] * len(drawn)
        boxes += [box for _, _, box in drawn]
        unused = sorted(set(classes.values()) - {name for _, name, _ in drawn})
        findings += [Finding("empty class", name, f"{path.name} has no box of it", "Remove it.") for name in unused]
    if not images:
        raise DataError(f"None of the images that {', '.join(path.name for path in files.values())} names can be read.")
    of_images = Examples(tuple(names), np.array(parts), tuple(image.key for image in images))
    of_boxes = Examples(
        ("",) * len(labels), np.array(box_parts), tuple(range(len(labels))), np.array(labels, dtype=object)
    )
    shapes = Counter(image.shape for image in images)
    report = InspectionReport(
        path=str(folder),
        kind="images with boxes",
        shape=_shape(shapes, boxes, len(images)),
        num_bytes=_num_bytes(shapes),
        findings=tuple(findings),
    )
    report = finished(report, of_images, labelled=of_boxes if labels else None)
    return replace(report, findings=tuple(one for one in report.findings if one.kind != "one class"))


def _size(
    entry: Mapping[str, Any], image: SmallImage, file: str, findings: list[Finding], *, has_boxes: bool
) -> tuple[int, ...]:
    """Height and width of an image as its boxes were drawn; adds a finding if the file says something else."""
    try:
        orientation = orientation_of_boxes(entry, image.header, file, has_boxes=has_boxes)
    except DataError as error:
        findings.append(Finding("other size", file, str(error), "Training refuses it."))
        return image.shape[:2]
    return image.shape[1::-1] if orientation in TURNED else image.shape[:2]


def _boxes(
    content: Any,
    name: str,
    images: Mapping[Any, Any],
    classes: Mapping[Any, str],
    sizes: Mapping[Any, tuple[int, ...]],
    findings: list[Finding],
) -> Iterator[tuple[Any, str, list[float]]]:
    """Image, class and box of each valid annotation; adds a finding for every other one."""
    seen = set()
    for entry in _entries(content, "annotations"):
        where = f"annotation {entry.get('id')!r} in {name}"
        key: Any = entry.get("image_id")
        if is_crowd(entry):
            continue
        box: Any = entry.get("bbox")
        if key not in images or entry.get("category_id") not in classes:
            text = f"the file has no image {key!r}" if key not in images else "the file does not have its category"
            findings.append(Finding("unknown entry", where, text, "Fix the annotation."))
            continue
        if not are_numbers(box) or not has_area(box):
            findings.append(Finding("box without area", where, f"its bbox is {box!r}", "Fix or remove it."))
            continue
        height, width = sizes.get(key, (np.inf, np.inf))
        left, top, right, bottom = box[0], box[1], box[0] + box[2], box[1] + box[3]
        if min(left, top) < -_SLACK or right > width + _SLACK or bottom > height + _SLACK:
            text = f"its bbox {box!r} leaves the image of {width} x {height} pixels (width x height)"
            findings.append(Finding("box outside", where, text, "Fix it."))
        if (key, entry["category_id"], *box) in seen:
            findings.append(Finding("duplicate box", where, "its image has the same box twice", "Keep one of them."))
        seen.add((key, entry["category_id"], *box))
        yield key, classes[entry["category_id"]], box


def _shape(shapes: Counter[tuple[int, ...]], boxes: list[list[float]], num_images: int) -> str:
    size = "x".join(map(str, shapes.most_common(1)[0][0])) + (" (most of them)" if len(shapes) > 1 else "")
    return f"{size}, {len(boxes) / num_images:.1f} boxes (mean)"


def _entries(content: Any, name: str) -> list[dict[str, Any]]:
    return [entry for entry in content[name] if isinstance(entry, dict)]


def _is_coco(path: Path) -> bool:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and all(isinstance(content.get(name), list) for name in _LISTS)
