"""Inspection of images with boxes in COCO format: invalid entries, unreadable files, duplicates, leaks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.data.boxes.coco_files import check_ids
from tfaccel.data.boxes.coco_images import TURNED, are_numbers, has_area, image_file, is_crowd, orientation_of_boxes
from tfaccel.errors import DataError
from tfaccel.extras.inspection.checks import balance, copies, memory, part_sizes
from tfaccel.extras.inspection.findings import Examples, Finding, InspectionReport, Progress, no_progress
from tfaccel.extras.inspection.images import SmallImage, read_or_finding

_LISTS = ("images", "annotations", "categories")
_NAMES = {"train": ("train.json", "instances_train*.json"), "test": ("test.json", "val.json", "instances_val*.json")}
_SLACK = 1.0  # pixels by which a box may exceed its image: annotation tools round
_EVERY = 50  # images between two progress reports


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

    Raises:
        DataError: if no image can be read.
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
    findings += copies(of_images)
    of_boxes = Examples(
        ("",) * len(labels), np.array(box_parts), tuple(range(len(labels))), np.array(labels, dtype=object)
    )
    counts, weights, found = balance(of_boxes) if labels else ({}, {}, [])
    shapes = Counter(image.shape for image in images)
    num_bytes = sum(count * int(np.prod(shape)) for shape, count in shapes.items())
    free, of_memory = memory(num_bytes)
    return InspectionReport(
        path=str(folder),
        kind="images with boxes",
        shape=_shape(shapes, boxes, len(images)),
        num_examples=part_sizes(of_images),
        class_counts=counts,
        class_weights=weights,
        num_bytes=num_bytes,
        memory_bytes=free,
        findings=(*findings, *(one for one in found if one.kind != "one class"), *of_memory),
    )


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
