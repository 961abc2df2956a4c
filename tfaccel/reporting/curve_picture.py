"""A picture of how a figure went over the epochs, one line for each of a few runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike

from PIL import Image, ImageDraw

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import BLUE, GREY, ORANGE, WHITE, draw_text, save_picture
from tfaccel.reporting.plot_axes import Axes

_WIDTH, _HEIGHT = 520, 300  # of the axes, in pixels
_LEFT, _TOP, _RIGHT, _BOTTOM = 62, 56, 20, 54
_COLORS = (BLUE, ORANGE, GREY)
_RADIUS = 3


def save_curve_picture(path: str | PathLike[str], curves: Mapping[str, Sequence[float]], *, name: str) -> None:
    """Draws a line through the values after each epoch for each run, and writes it as PNG, whole or not at all.

    Arguments:
        path: the file to write.
        curves: run -> a value for each epoch; at most three runs.
        name: what the values are, for the axis.

    Raises:
        DataError: if there is no run or a run without values, or there are more than three.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = f"{folder}/curves.png"
        ...     save_curve_picture(path, {"fine-tuned": [0.7, 0.9], "from scratch": [0.2, 0.6]}, name="accuracy")
        ...     with Image.open(path) as picture:
        ...         picture.size
        (602, 410)
    """
    if not 0 < len(curves) <= len(_COLORS) or not all(len(values) for values in curves.values()):
        lengths = {run: len(values) for run, values in curves.items()}
        raise DataError(f"A picture needs the values of 1 to {len(_COLORS)} runs. Received numbers: {lengths}.")
    low = min(min(values) for values in curves.values())
    high = max(max(values) for values in curves.values())
    picture = Image.new("RGB", (_LEFT + _WIDTH + _RIGHT, _TOP + _HEIGHT + _BOTTOM), WHITE)
    draw = ImageDraw.Draw(picture)
    longest = max(len(values) for values in curves.values())
    axes = Axes(_LEFT, _TOP, _LEFT + _WIDTH, _TOP + _HEIGHT, (0, longest), (low, high))
    axes.draw(draw, x_label="epochs", y_label=name)
    for number, ((run, values), color) in enumerate(zip(curves.items(), _COLORS, strict=False)):
        points = [axes.place(epoch + 1, value) for epoch, value in enumerate(values)]
        draw.line(points, fill=color, width=2)
        for x, y in points:
            draw.ellipse([x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS], fill=color)
        draw_text(draw, (_LEFT + 120 + 160 * number, _TOP - 20), run, anchor="lm", color=color)
    save_picture(path, picture)
