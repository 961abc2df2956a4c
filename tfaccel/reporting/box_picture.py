"""Plots of images with predicted and true boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.boxes.box_data import NO_OBJECT
from tfaccel.errors import DataError
from tfaccel.reporting.image_grid import as_bytes, as_image
from tfaccel.reporting.picture_files import GREEN, ORANGE, image_axes, new_figure, place_labels, saved, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NUM_COLUMNS, _MAX_IMAGES, _TILE, _GAP, _LEGEND = 4, 12, 300, 8, 30  # tiles, gaps and the legend in pixels


def box_figure(
    images: np.ndarray,
    *,
    boxes: np.ndarray,
    labels: np.ndarray,
    detections: Sequence[Any],
    class_names: tuple[str, ...],
    least_score: float = 0.4,
) -> Figure:
    """Plots the first images with predicted boxes in orange, with class and score, and true boxes in green.

    A label without free space is left out, that of the lowest-scoring detection first.

    Args:
        images: of shape (num_images, size, size, channels).
        boxes, labels: the ground truth, as in `tfaccel.data.boxes.box_data.BoxedSplit`.
        detections: an object with `boxes`, `labels` and `scores` for each image.
        class_names: the name of each class.
        least_score: detections with a lower score are not drawn.

    Raises:
        DataError: if there are no images, or the numbers of images, boxes, labels and detections differ.
    """
    from matplotlib.patches import Rectangle

    if len(images) == 0 or not len(images) == len(boxes) == len(labels) == len(detections):
        raise DataError(
            "A plot needs at least one image, and boxes, labels and detections for each. Received: "
            f"{len(images)} images, {len(boxes)} boxes, {len(labels)} labels, {len(detections)} detections."
        )
    num_images = min(len(images), _MAX_IMAGES)
    num_columns, pitch = min(_NUM_COLUMNS, num_images), _TILE + _GAP
    num_rows = -(-num_images // num_columns)
    figure = new_figure(num_columns * pitch + _GAP, num_rows * pitch + _LEGEND, layout=None)
    for number, pixels in enumerate(as_bytes(images[:num_images])):
        left, top = _GAP + number % num_columns * pitch, _LEGEND + number // num_columns * pitch
        axes = image_axes(figure, left, top, _TILE)
        axes.imshow(as_image(pixels), interpolation="nearest")
        for box in boxes[number][labels[number] != NO_OBJECT]:
            _draw_box(axes, box, GREEN, 1)
        found = detections[number]
        order = [row for row in np.argsort(found.scores)[::-1] if found.scores[row] >= least_score]
        for row in order:
            _draw_box(axes, found.boxes[row], ORANGE, 2)
        texts = [f"{shown(class_names[found.labels[row]], 16)} {found.scores[row]:.2f}" for row in order]
        places = [tuple(map(float, found.boxes[row] - 0.5)) for row in order]
        place_labels(axes, [(text, place, "#9a4300") for text, place in zip(texts, places, strict=True)])  # type: ignore[misc]
    frames = [Rectangle((0, 0), 1, 1, fill=False, edgecolor=color) for color in (ORANGE, GREEN)]
    figure.legend(frames, ["found", "true"], loc="upper center", ncols=2, frameon=False)
    return figure


save_box_picture = saved(box_figure)


def _draw_box(axes: Axes, box: np.ndarray, color: str, line_width: float) -> None:
    """Draws a box (left, top, right, bottom) in pixels; in matplotlib, integer coordinates are pixel centers."""
    from matplotlib.patches import Rectangle

    left, top, right, bottom = (float(edge) - 0.5 for edge in box)
    axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, color=color, linewidth=line_width))
