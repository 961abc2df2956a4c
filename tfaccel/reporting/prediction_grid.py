"""Grids of test images with their predicted classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfaccel.errors import DataError
from tfaccel.reporting.image_grid import as_bytes, framed_grid
from tfaccel.reporting.picture_files import GREEN, RED, saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
