"""Pictures made of images: grids with captions, predicted classes or boxes, and maps of latent vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from tfaccel.data.box_data import NO_OBJECT
from tfaccel.errors import DataError
from tfaccel.reporting.figures import (
    BLACK,
    CLASS_COLORS,
    GREEN,
    LIGHT,
    ORANGE,
    RED,
    SMALL,
    fitted,
    image_axes,
    new_figure,
    place_labels,
    saved,
    shown,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


TILE, GAP, LINE = 92, 8, 13  # pixels
_MAX_CAPTION = 15  # characters that usually fit a tile


def image_grid_figure(images: np.ndarray, *, captions: list[str] | None = None, num_columns: int = 10) -> Figure:
    """Plots images row by row.

    Args:
        images: pixel values, of shape (num_images, height, width, channels) with 1 or 3 channels; they are rescaled so
            that the darkest becomes black and the brightest white.
        captions: a text below each image, wrapped to two lines if long; None for no captions.
        num_columns: images per row.

    Raises:
        DataError: if there are no images, or the number of captions differs from theirs.

    Example:
        >>> figure = image_grid_figure(np.random.default_rng(0).random((4, 8, 8, 1)), num_columns=2)
        >>> len(figure.axes), figure.bbox.size.tolist()
        (4, [208.0, 208.0])
    """
    if len(images) == 0 or (captions is not None and len(captions) != len(images)):
        num_captions = "none" if captions is None else len(captions)
        raise DataError(
            "A plot needs at least one image, and one caption for each or no captions. "
            f"Received: {len(images)} images, {num_captions} captions."
        )
    lines = [on_lines(caption) for caption in captions or []]
    return framed_grid(as_bytes(images), lines, [None] * len(images), num_columns=num_columns)


save_image_grid = saved(image_grid_figure)


def framed_grid(
    pixels: np.ndarray, captions: list[list[str]], colors: list[str] | list[None], *, num_columns: int
) -> Figure:
    """Plots images (uint8) row by row, each with lines of text below and, if it has a color, a frame."""
    num_lines = max((len(lines) for lines in captions), default=0)
    figure, tiles = tiled_figure(len(pixels), TILE, num_columns=num_columns, below=LINE * num_lines)
    for number, (axes, image, color) in enumerate(zip(tiles, pixels, colors, strict=True)):
        axes.imshow(as_image(image), interpolation="nearest")
        axes.spines[:].set(visible=color is not None, color=color or BLACK, linewidth=3)
        if captions:
            text = "\n".join(fitted(figure, line, TILE) for line in captions[number])
            axes.set_xlabel(text, fontsize=SMALL, color=color or BLACK, labelpad=3, linespacing=1.0)
    return figure


def tiled_figure(
    num_tiles: int, side: int, *, num_columns: int, above: int = GAP, below: int = 0
) -> tuple[Figure, list[Axes]]:
    """A figure with square axes for images, row by row.

    Args:
        num_tiles: their number.
        side: the side of each, in pixels.
        num_columns: tiles per row, at most.
        above, below: space above the first row, and below each row, in pixels.
    """
    num_columns = min(num_columns, num_tiles)
    width, height = side + GAP, side + GAP + below
    figure = new_figure(num_columns * width + GAP, -(-num_tiles // num_columns) * height + above, layout=None)
    places = [divmod(number, num_columns) for number in range(num_tiles)]
    return figure, [image_axes(figure, GAP + x * width, above + y * height, side) for y, x in places]


def on_lines(caption: str) -> list[str]:
    """Splits a caption into two lines if it is too long for one.

    Example:
        >>> on_lines("square: -17"), on_lines("a rather long name: -17")
        (['square: -17'], ['a rather long', 'name: -17'])
    """
    space = caption.rfind(" ", 0, _MAX_CAPTION + 1)
    if len(caption) <= _MAX_CAPTION or space < 1:
        return [caption]
    return [caption[:space], caption[space + 1 :]]


def as_bytes(images: np.ndarray) -> np.ndarray:
    """Rescales pixel values to uint8, from black (the darkest of all) to white (the brightest)."""
    low, high = float(images.min()), float(images.max())
    return np.round((images.astype(np.float64) - low) * (255 / (high - low or 1.0))).astype(np.uint8)


def as_image(pixels: np.ndarray) -> Image.Image:
    """Converts an image of 1 or 3 channels (uint8) to RGB."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB")


_NUM_COLUMNS, _MAX_ROWS = 10, 6


def prediction_figure(
    images: np.ndarray, *, labels: np.ndarray, predictions: np.ndarray, class_names: tuple[str, ...]
) -> Figure:
    """Plots a grid of images, each with its predicted class.

    Misclassified images come first, framed in red, with the true class below the predicted one; they fill at most half
    of the grid. The others follow in order, framed in green.

    Args:
        images: pixel values, of shape (num_images, height, width, channels) with 1 or 3 channels; they are rescaled so
            that the darkest becomes black and the brightest white.
        labels: the true class index of each image, of shape (num_images,).
        predictions: the predicted class index of each image.
        class_names: the name of each class.

    Raises:
        DataError: if there are no images, or the numbers of images, labels and predictions differ.

    Example:
        >>> images = np.random.default_rng(0).random((4, 8, 8, 1))
        >>> figure = prediction_figure(images, labels=np.zeros(4, int), predictions=np.array([0, 1, 0, 0]),
        ...                            class_names=("cat", "dog"))
        >>> figure.axes[0].get_xlabel()
        'dog\\nis cat'
    """
    if len(images) == 0 or not len(images) == len(labels) == len(predictions):
        raise DataError(
            "A plot needs at least one image, and a label and a prediction for each. "
            f"Received: {len(images)} images, {len(labels)} labels, {len(predictions)} predictions."
        )
    rows = shown_rows(labels, predictions)
    captions = [make_caption(int(labels[row]), int(predictions[row]), class_names) for row in rows]
    colors = [GREEN if labels[row] == predictions[row] else RED for row in rows]
    return framed_grid(as_bytes(images)[rows], captions, colors, num_columns=_NUM_COLUMNS)


save_prediction_grid = saved(prediction_figure)


def shown_rows(labels: np.ndarray, predictions: np.ndarray) -> list[int]:
    """The indices of the images to show: misclassified ones first, up to half of the grid."""
    most = _NUM_COLUMNS * _MAX_ROWS
    wrong = np.flatnonzero(labels != predictions)[: most // 2]
    right = np.flatnonzero(labels == predictions)[: most - len(wrong)]
    return [int(row) for row in (*wrong, *right)]


def make_caption(label: int, prediction: int, class_names: tuple[str, ...]) -> list[str]:
    """The lines below an image: the predicted class, and the true one if they differ.

    Example:
        >>> make_caption(1, 0, ("cat", "dog"))
        ['cat', 'is dog']
    """
    name = class_names[prediction]
    return [name] if label == prediction else [name, f"is {class_names[label]}"]


_BOX_COLUMNS, _MAX_BOX_IMAGES, _BOX_TILE, _LEGEND = 4, 12, 300, 30  # tiles and the legend in pixels


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
        boxes, labels: the ground truth, as in `tfaccel.data.box_data.BoxedSplit`.
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
    num_images = min(len(images), _MAX_BOX_IMAGES)
    figure, tiles = tiled_figure(num_images, _BOX_TILE, num_columns=_BOX_COLUMNS, above=_LEGEND)
    for number, (axes, pixels) in enumerate(zip(tiles, as_bytes(images[:num_images]), strict=True)):
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


_SIDE, _THUMBNAIL = 880, 24  # pixels
_MARGIN = 0.03  # fraction of the range of the points
_MAX_THUMBNAILS, _MAX_DOTS, _MAX_NAMES = 1000, 5000, 20


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
        paper = _paper(
            places[:_MAX_THUMBNAILS], as_bytes(images[:_MAX_THUMBNAILS]), colors, (low - margin, high + margin)
        )
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
        grey = as_image(pixels).convert("L").resize((_THUMBNAIL, _THUMBNAIL), Image.Resampling.BILINEAR)
        tile = Image.new("RGBA", grey.size, color)
        tile.putalpha(grey)
        paper.alpha_composite(tile, (max(0, int(x) - _THUMBNAIL // 2), max(0, int(_SIDE - y) - _THUMBNAIL // 2)))
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
