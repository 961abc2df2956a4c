"""A picture of images with the boxes that a model found, and the true ones."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from tfaccel.data.boxed_images import NO_OBJECT
from tfaccel.errors import DataError
from tfaccel.reporting.image_grid import as_bytes, as_image
from tfaccel.reporting.picture_files import draw_text, save_picture

_NUM_COLUMNS, _MOST_IMAGES, _TILE, _GAP = 4, 12, 240, 6  # tiles and gaps in pixels
_FOUND, _TRUE = (255, 140, 20), (60, 200, 90)


def save_box_picture(
    path: str | PathLike[str],
    images: np.ndarray,
    *,
    boxes: np.ndarray,
    labels: np.ndarray,
    detections: Sequence[Any],
    class_names: tuple[str, ...],
    least_score: float = 0.4,
) -> None:
    """Draws the first images, found boxes in orange with class and score, true ones thin and green; writes PNG.

    Arguments:
        path: the file to write.
        images: of shape (num_images, size, size, channels).
        boxes, labels: the true ones, as in `tfaccel.data.boxed_images.BoxedSplit`.
        detections: for each image an object with `boxes`, `labels` and `scores`.
        class_names: a name for each class.
        least_score: detections that are less sure are not drawn.

    Raises:
        DataError: if there are no images, or not one entry of each kind for each image.
    """
    if len(images) == 0 or not len(images) == len(boxes) == len(labels) == len(detections):
        raise DataError(
            "A picture needs at least one image, and boxes, labels and detections for each. Received: "
            f"{len(images)} images, {len(boxes)} boxes, {len(labels)} labels, {len(detections)} detections."
        )
    shown = min(len(images), _MOST_IMAGES)
    num_columns, pitch = min(_NUM_COLUMNS, shown), _TILE + _GAP
    picture = Image.new("RGB", (num_columns * pitch, -(-shown // num_columns) * pitch), "white")
    pixels, scale = as_bytes(images[:shown]), _TILE / images.shape[1]
    for number in range(shown):
        tile = as_image(pixels[number]).resize((_TILE, _TILE), Image.Resampling.NEAREST)
        draw, found = ImageDraw.Draw(tile), detections[number]
        for box in boxes[number][labels[number] != NO_OBJECT]:
            draw.rectangle(_on_tile(box, scale), outline=_TRUE, width=1)
        for box, label, score in zip(found.boxes, found.labels, found.scores, strict=True):
            if score >= least_score:
                left, top, right, bottom = _on_tile(box, scale)
                draw.rectangle((left, top, right, bottom), outline=_FOUND, width=2)
                text = f"{class_names[label]} {score:.2f}"
                draw_text(draw, (left + 3, max(top - 14, 0)), text, color=_FOUND, size=12)
        picture.paste(tile, (number % num_columns * pitch, number // num_columns * pitch))
    save_picture(path, picture)


def _on_tile(box: np.ndarray, scale: float) -> tuple[float, float, float, float]:
    left, top, right, bottom = (float(edge) * scale for edge in box)
    return left, top, max(right - 1, left), max(bottom - 1, top)
