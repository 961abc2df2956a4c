"""A picture of forms of a model: how large each is, and how good."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

from PIL import Image, ImageDraw

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import BLACK, BLUE, GREY, ORANGE, WHITE, draw_text, save_picture
from tfaccel.reporting.plot_axes import Axes

_WIDTH, _HEIGHT = 560, 340  # of the axes, in pixels
_LEFT, _TOP, _RIGHT, _BOTTOM = 80, 60, 130, 60
_RADIUS = 5
_COLORS = {"winner": ORANGE, "passes": BLUE, "fails": GREY, "float": BLACK}
_LEGEND = {"winner": "smallest within the limit", "passes": "within the limit", "fails": "not", "float": "as trained"}


@dataclass(frozen=True)
class SizedForm:
    """A dot of the picture.

    Attributes:
        name: of the form.
        size_bytes: across.
        metric: up.
        state: "float", "winner", "passes" or "fails".
    """

    name: str
    size_bytes: int
    metric: float
    state: str


def save_size_metric_picture(
    path: str | PathLike[str], forms: Sequence[SizedForm], *, metric: str, limit: float
) -> None:
    """Draws a dot for each form, its size across and its metric up, and a line at the limit; writes it as PNG.

    Arguments:
        path: the file to write.
        forms: those whose metric is a number are drawn.
        metric: what the metric is.
        limit: how bad the metric may be.

    Raises:
        DataError: if no form can be drawn.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     forms = [SizedForm("float32", 4000, 0.98, "float"), SizedForm("int8", 1000, 0.97, "winner")]
        ...     save_size_metric_picture(f"{folder}/a.png", forms, metric="accuracy", limit=0.97)
        ...     with Image.open(f"{folder}/a.png") as picture:
        ...         picture.size
        (770, 460)
    """
    drawn = [form for form in forms if math.isfinite(form.metric)]
    if not drawn:
        raise DataError("A picture of sizes and metrics needs at least one form with both. Received none.")
    heights = [*(form.metric for form in drawn), limit]
    margin = 0.08 * (max(heights) - min(heights)) or 0.01
    kilobytes = [form.size_bytes / 1000 for form in drawn]
    axes = Axes(_LEFT, _TOP, _LEFT + _WIDTH, _TOP + _HEIGHT, (0.0, 1.05 * max(kilobytes)),
                (min(heights) - margin, max(heights) + margin))  # fmt: skip
    picture = Image.new("RGB", (_LEFT + _WIDTH + _RIGHT, _TOP + _HEIGHT + _BOTTOM), WHITE)
    draw = ImageDraw.Draw(picture)
    axes.draw(draw, x_label="size of the file in kB", y_label=metric)
    left, right = axes.place(axes.x_range[0], limit), axes.place(axes.x_range[1], limit)
    draw.line([left, right], fill=ORANGE)
    draw_text(draw, (right[0] + 6, right[1]), "limit", anchor="lm", color=ORANGE)
    for form, size in zip(drawn, kilobytes, strict=True):
        x, y = axes.place(size, form.metric)
        color = _COLORS[form.state]
        draw.ellipse([x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS], fill=color)
        draw_text(draw, (x + 9, y - 9), form.name, anchor="lm", size=12, color=color)
    for number, (state, text) in enumerate(_LEGEND.items()):
        draw_text(draw, (_LEFT + number * 165, 20), text, anchor="lm", color=_COLORS[state])
    save_picture(path, picture)
