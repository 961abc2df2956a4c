"""A two-dimensional map of a model's latent vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from tfaccel.errors import DataError
from tfaccel.reporting.image_grid import as_bytes, as_image
from tfaccel.reporting.picture_files import CLASS_COLORS, LIGHT, new_figure, saved, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDE, _TILE = 880, 24  # pixels
_MARGIN = 0.03  # fraction of the range of the points
_MAX_IMAGES, _MAX_DOTS, _MAX_NAMES = 1000, 5000, 20


def latent_figure(
    places: np.ndarray, *, labels: np.ndarray, class_names: tuple[str, ...], images: np.ndarray | None = None
) -> Figure:
    """Plots each example at its position, colored by class.

    Args:
        places: positions, of shape (num_examples, 2).
        labels: the class index of each example.
        class_names: the name of each class.
        images: thumbnails to draw, of shape (num_examples, height, width, channels); None for dots.

    Raises:
        DataError: if there are no examples, or the numbers of places, labels and images differ.

    Example:
        >>> figure = latent_figure(np.eye(2), labels=np.array([0, 1]), class_names=("cat", "dog"))
        >>> [text.get_text() for text in figure.legends[0].get_texts()]
        ['cat', 'dog']
    """
    from matplotlib.lines import Line2D

    if len(places) == 0 or len(places) != len(labels) or (images is not None and len(images) != len(places)):
        raise DataError(
            f"A map needs one label, and one image or none, for each place. Received: {len(places)} places, "
            f"{len(labels)} labels, {'no' if images is None else len(images)} images."
        )
    figure = new_figure(_SIDE + 120, _SIDE)
    axes = figure.add_subplot()
    colors = [CLASS_COLORS[int(label) % len(CLASS_COLORS)] for label in labels]
    low, high = places.min(axis=0), places.max(axis=0)
    margin = _MARGIN * np.where(high > low, high - low, 1.0)
    (left, bottom), (right, top) = low - margin, high + margin
    axes.set(xlim=(left, right), ylim=(bottom, top), xlabel="first direction", ylabel="second direction")
    axes.grid(color=LIGHT)
    axes.set_axisbelow(True)
    if images is not None:
        paper = _paper(places[:_MAX_IMAGES], as_bytes(images[:_MAX_IMAGES]), colors, (low - margin, high + margin))
        axes.imshow(paper, extent=(left, right, bottom, top), aspect="auto")
    else:
        axes.scatter(places[:_MAX_DOTS, 0], places[:_MAX_DOTS, 1], c=colors[:_MAX_DOTS], s=14)
    dots = [
        Line2D([], [], marker="o", linestyle="", color=color)
        for color in (CLASS_COLORS * 2)[: min(len(class_names), _MAX_NAMES)]
    ]
    names = [shown(name, 18) for name in class_names[:_MAX_NAMES]]
    figure.legend(dots, names, loc="outside right upper", frameon=False)
    return figure


save_latent_map = saved(latent_figure)


def _paper(
    places: np.ndarray, images: np.ndarray, colors: list[str], bounds: tuple[np.ndarray, np.ndarray]
) -> Image.Image:
    """Thumbnails on a transparent canvas that spans the bounds, their bright parts in the color of the class."""
    paper = Image.new("RGBA", (_SIDE, _SIDE))
    across = (places - bounds[0]) / (bounds[1] - bounds[0]) * _SIDE
    for (x, y), pixels, color in zip(across.tolist(), images, colors, strict=False):
        grey = as_image(pixels).convert("L").resize((_TILE, _TILE), Image.Resampling.BILINEAR)
        tile = Image.new("RGBA", grey.size, color)
        tile.putalpha(grey)
        paper.alpha_composite(tile, (max(0, int(x) - _TILE // 2), max(0, int(_SIDE - y) - _TILE // 2)))
    return paper


def two_main_directions(points: np.ndarray) -> np.ndarray:
    """Projects points to their first two principal components, of shape (num_points, 2).

    Example:
        >>> two_main_directions(np.array([[0.0, 5.0, 0.0], [0.0, -5.0, 0.0], [1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])).shape
        (4, 2)
    """
    centred = points - points.mean(axis=0)
    directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
    flat = centred @ directions.T
    return np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))
