"""A picture of predicted numbers over true ones, one square for each model."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

import numpy as np
from PIL import Image, ImageDraw

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import BLUE, GREY, WHITE, draw_text, save_picture
from tfaccel.reporting.plot_axes import Axes

_SIDE, _LEFT, _TOP, _BOTTOM = 360, 70, 64, 60  # pixels
_MOST_POINTS = 2000
_RADIUS = 3


def save_scatter_picture(
    path: str | PathLike[str], targets: np.ndarray, predictions: Mapping[str, np.ndarray], *, name: str
) -> None:
    """Draws a dot for each row, the true number across and the predicted one up, and writes it as PNG.

    Dots on the diagonal are predicted rightly. Of more than 2,000 rows, every n-th is drawn.

    Arguments:
        path: the file to write.
        targets: the true numbers, of shape (num_rows,).
        predictions: model -> numbers of the same shape.
        name: what is predicted.

    Raises:
        DataError: if there are no rows, or not as many predictions.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = f"{folder}/predictions.png"
        ...     save_scatter_picture(path, np.arange(9.0), {"network": np.arange(9.0)}, name="price")
        ...     with Image.open(path) as picture:
        ...         picture.size
        (450, 484)
    """
    if len(targets) == 0 or not predictions or any(values.shape != targets.shape for values in predictions.values()):
        shapes = {model: values.shape for model, values in predictions.items()}
        raise DataError(f"A picture needs a prediction for each of {targets.shape} numbers. Received: {shapes}.")
    every = -(-len(targets) // _MOST_POINTS)
    shown = [targets[::every], *(values[::every] for values in predictions.values())]
    low, high = float(np.min(shown)), float(np.max(shown))
    margin = 0.04 * (high - low)
    bounds = (low - margin, high + margin)
    width = _SIDE + _LEFT + 20
    picture = Image.new("RGB", (len(predictions) * width, _TOP + _SIDE + _BOTTOM), WHITE)
    draw = ImageDraw.Draw(picture)
    for number, (model, values) in enumerate(predictions.items()):
        left = number * width + _LEFT
        axes = Axes(left, _TOP, left + _SIDE, _TOP + _SIDE, bounds, bounds)
        axes.draw(draw, x_label=f"true {name}", y_label="predicted")
        draw_text(draw, (left + _SIDE / 2, 20), model, anchor="mm", size=16)
        draw.line([axes.place(axes.x_range[0], axes.y_range[0]), axes.place(axes.x_range[1], axes.y_range[1])], GREY)
        for true, predicted in zip(targets[::every].tolist(), values[::every].tolist(), strict=True):
            x, y = axes.place(true, predicted)
            draw.ellipse([x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS], outline=BLUE)
    save_picture(path, picture)
