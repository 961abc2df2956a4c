"""A map of what a model finds alike: each example at its place in two dimensions."""

from __future__ import annotations

from os import PathLike

import numpy as np
from PIL import Image, ImageDraw

from tfaccel.errors import DataError
from tfaccel.reporting.image_grid import as_bytes, as_image
from tfaccel.reporting.picture_files import draw_text, save_picture, shortened

_SIDE, _MARGIN, _TILE, _DOT = 900, 30, 22, 3  # pixels
_MOST_IMAGES, _MOST_DOTS, _MOST_NAMES = 1000, 5000, 20
_COLORS = (
    (31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189), (140, 86, 75), (227, 119, 194),
    (110, 110, 110), (160, 160, 20), (23, 170, 190),
)  # fmt: skip


def save_latent_map(
    path: str | PathLike[str],
    places: np.ndarray,
    *,
    labels: np.ndarray,
    class_names: tuple[str, ...],
    images: np.ndarray | None = None,
) -> None:
    """Draws the examples at their places, a color for each class, and writes the picture as PNG.

    Arguments:
        path: the file to write.
        places: of shape (num_examples, 2).
        labels: the class of each example, a number from 0.
        class_names: a name for each class.
        images: of shape (num_examples, height, width, channels), to be drawn small; None for dots.

    Raises:
        DataError: if there are no examples, or a number of labels or images that does not fit.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_latent_map(f"{folder}/map.png", np.eye(2), labels=np.array([0, 1]), class_names=("cat", "dog"))
        ...     with Image.open(f"{folder}/map.png") as picture:
        ...         picture.size
        (900, 930)
    """
    if len(places) == 0 or len(places) != len(labels) or (images is not None and len(images) != len(places)):
        raise DataError(
            f"A map needs a label, and an image or none, for each place. Received: {len(places)} places, "
            f"{len(labels)} labels, {'no' if images is None else len(images)} images."
        )
    low, high = places.min(axis=0), places.max(axis=0)
    on_paper = _MARGIN + (places - low) / np.where(high > low, high - low, 1) * (_SIDE - 2 * _MARGIN)
    paper = Image.new("RGB", (_SIDE, _SIDE + _MARGIN), "white")
    if images is not None:
        _draw_images(paper, on_paper, as_bytes(images), labels)
    else:
        draw = ImageDraw.Draw(paper)
        for (x, y), label in zip(on_paper[:_MOST_DOTS], labels[:_MOST_DOTS], strict=True):
            draw.ellipse((x - _DOT, y - _DOT, x + _DOT, y + _DOT), fill=_COLORS[int(label) % len(_COLORS)])
    draw, width = ImageDraw.Draw(paper), (_SIDE - 2 * _MARGIN) // min(max(len(class_names), 6), _MOST_NAMES)
    for number, name in enumerate(class_names[:_MOST_NAMES]):
        place = (_MARGIN + number * width, _SIDE + 8)
        draw_text(draw, place, shortened(name, max(4, width // 8)), color=_COLORS[number % len(_COLORS)])
    save_picture(path, paper)


def _draw_images(paper: Image.Image, places: np.ndarray, images: np.ndarray, labels: np.ndarray) -> None:
    """Small images, the bright parts in the color of the class."""
    for place, pixels, label in list(zip(places, images, labels, strict=True))[:_MOST_IMAGES]:
        grey = as_image(pixels).convert("L").resize((_TILE, _TILE), Image.Resampling.BILINEAR)
        corner = (int(place[0]) - _TILE // 2, int(place[1]) - _TILE // 2)
        paper.paste(Image.new("RGB", grey.size, _COLORS[int(label) % len(_COLORS)]), corner, mask=grey)


def two_main_directions(points: np.ndarray) -> np.ndarray:
    """The points along the two directions in which they spread most: of shape (num_points, 2).

    Example:
        >>> two_main_directions(np.array([[0.0, 5.0, 0.0], [0.0, -5.0, 0.0], [1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])).shape
        (4, 2)
    """
    centred = points - points.mean(axis=0)
    directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
    flat = centred @ directions.T
    return np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))
