"""COCO detection metrics, computed by pycocotools."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfaccel.data.box_data import NO_OBJECT
from tfaccel.errors import DataError, VersionError


def check_coco_library() -> None:
    """Raises VersionError if pycocotools is not installed."""
    if importlib.util.find_spec("pycocotools") is None:
        raise VersionError(
            "Scoring detections needs pycocotools, which is not installed. Run: pip install 'tfaccel[detection]'."
        )


def coco_scores(
    boxes: np.ndarray, labels: np.ndarray, detections: Sequence[Any], *, class_names: tuple[str, ...]
) -> dict[str, Any]:
    """Computes the mean average precision of detections, from 0 to 1.

    Args:
        boxes: the true boxes in pixels: left, top, right, bottom; of shape (num_images, max_objects, 4).
        labels: their classes, of shape (num_images, max_objects), padded with NO_OBJECT.
        detections: an object with `boxes` (num_found, 4), `labels` and `scores` for each image.
        class_names: the name of each class.

    Returns:
        "map_50" (mAP at an IoU threshold of 0.5), "map" (the mean over IoU thresholds from 0.5 to 0.95), and
        "ap_50_by_class", None for a class without objects.

    Raises:
        VersionError: if pycocotools is not installed.
        DataError: if the numbers of images and detections differ.

    Example:
        >>> from types import SimpleNamespace
        >>> box = np.array([[0.0, 0, 9, 9]])
        >>> found = SimpleNamespace(boxes=box, labels=np.array([0]), scores=np.array([0.9]))
        >>> round(coco_scores(box[None], np.array([[0]]), [found], class_names=("cat",))["map_50"], 6)
        1.0
    """
    check_coco_library()
    if len(detections) != len(boxes):
        raise DataError(
            f"Each image needs its detections. Received: {len(boxes)} images, {len(detections)} detections."
        )
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth = [
        _entry(image, boxes[image, place], labels[image, place])
        for image, place in zip(*np.nonzero(labels != NO_OBJECT), strict=True)
    ]
    found = [
        {**_entry(image, box, label), "score": float(score)}
        for image, one in enumerate(detections)
        for box, label, score in zip(one.boxes, one.labels, one.scores, strict=True)
    ]
    num_classes = len(class_names)
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        judge = COCOeval(_coco(COCO(), truth, len(boxes), class_names), iouType="bbox")
        judge.cocoDt = _coco(COCO(), found, len(boxes), class_names)
        judge.evaluate()
        judge.accumulate()
    precision = judge.eval["precision"][:, :, :, 0, -1]  # IoU, recall, class; all box sizes, max detections
    by_class = [
        [_mean(precision[overlaps, :, c]) for c in range(num_classes)] for overlaps in (slice(0, 1), slice(None))
    ]
    means = [float(np.mean([v for v in values if v is not None] or [0.0])) for values in by_class]
    return {"map_50": means[0], "map": means[1], "ap_50_by_class": dict(zip(class_names, by_class[0], strict=True))}


def box_rows(detections: Sequence[Any], *, class_names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Converts detections to JSON values: image index, category, box (left, top, width, height) and score.

    Args:
        detections: an object with `boxes` (num_found, 4), `labels` and `scores` for each image.
        class_names: the name of each class.
    """
    return [
        {
            "image_id": image,
            "category": class_names[label],
            "bbox": [*map(float, (*box[:2], *(box[2:] - box[:2])))],
            "score": float(score),
        }
        for image, one in enumerate(detections)
        for box, label, score in zip(one.boxes, one.labels, one.scores, strict=True)
    ]


def _entry(image: int, box: np.ndarray, label: int) -> dict[str, Any]:
    left, top, right, bottom = (float(edge) for edge in box)
    size = [left, top, right - left, bottom - top]
    return {"image_id": int(image), "category_id": int(label), "bbox": size, "area": size[2] * size[3], "iscrowd": 0}


def _coco(coco: Any, entries: list[dict[str, Any]], num_images: int, class_names: tuple[str, ...]) -> Any:
    """Fills a pycocotools dataset with these boxes."""
    coco.dataset = {
        "images": [{"id": image} for image in range(num_images)],
        "categories": [{"id": number, "name": name} for number, name in enumerate(class_names)],
        "annotations": [{"id": number + 1, **entry} for number, entry in enumerate(entries)],
    }
    coco.createIndex()
    return coco


def _mean(precision: np.ndarray) -> float | None:
    """The mean precision of a class; None if it has no objects, which pycocotools marks with -1."""
    return None if (precision < 0).all() else float(precision[precision >= 0].mean())
