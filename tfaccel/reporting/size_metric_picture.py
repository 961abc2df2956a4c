"""A picture of forms of a model: how large each is, and how good."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike

from PIL import Image, ImageDraw

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import BLACK, BLUE, GREY, ORANGE, WHITE, draw_text, font, save_picture
from tfaccel.reporting.plot_axes import Axes

_WIDTH, _HEIGHT = 560, 340  # of the axes, in pixels
_LEFT, _TOP, _RIGHT, _BOTTOM = 80, 60, 130, 60
_RADIUS = 5
_COLORS = {"winner": ORANGE, "passes": BLUE, "fails": GREY, "float": BLACK}
_LEGEND = {"winner": "smallest within the limit", "passes": "within the limit", "fails": "not within the limit",
           "float": "as trained"}  # fmt: skip
_NAME_SIZE = 12
_OFFSETS = (-9, 9, -22, 22, -35, 35, -48, 48, -61, 61)  # of a name, below its dot, in pixels
_Box = tuple[float, float, float, float]


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
    places = [axes.place(size, form.metric) for form, size in zip(drawn, kilobytes, strict=True)]
    for form, (x, y) in zip(drawn, places, strict=True):
        draw.ellipse([x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS], fill=_COLORS[form.state])
    for form, box in zip(drawn, _label_boxes(draw, [form.name for form in drawn], places), strict=True):
        draw_text(draw, (box[0], (box[1] + box[3]) / 2), form.name, anchor="lm", size=_NAME_SIZE,
                  color=_COLORS[form.state])  # fmt: skip
    for number, (state, text) in enumerate(_LEGEND.items()):
        draw_text(draw, (_LEFT + number * 165, 20), text, anchor="lm", color=_COLORS[state])
    save_picture(path, picture)


def _label_boxes(
    draw: ImageDraw.ImageDraw, names: Sequence[str], places: Sequence[tuple[float, float]]
) -> Iterator[_Box]:
    """Where each name stands: beside its dot, where no dot and no name is that was placed before."""
    taken: list[_Box] = [(x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS) for x, y in places]
    for name, (x, y) in zip(names, places, strict=True):
        width = draw.textlength(name, font=font(_NAME_SIZE))
        boxes = [(left, y + down - 6, left + width, y + down + 6) for down in _OFFSETS
                 for left in (x + 9, x - 9 - width)]  # fmt: skip
        inside = [box for box in boxes if box[0] > _LEFT and box[1] > _TOP and box[3] < _TOP + _HEIGHT]
        free = [box for box in inside if not any(_overlap(box, other) for other in taken)]
        box = (free or inside or boxes)[0]
        taken.append(box)
        yield box


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
