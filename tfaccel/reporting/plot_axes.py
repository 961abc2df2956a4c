"""Axes drawn with Pillow: where numbers stand in a picture, and the lines and numbers beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from PIL import ImageDraw

from tfaccel.reporting.picture_files import GREY, LIGHT, draw_text

_NUM_TICKS = 5


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers from `low` to `high`.

    Example:
        >>> ticks(-3.2, 11.0)
        [0.0, 5.0, 10.0]
    """
    raw = (high - low) / _NUM_TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Axes:
    """A rectangle in a picture in which numbers have their places.

    Arguments:
        left, top, right, bottom: its edges, in pixels.
        x_range, y_range: the lowest and the highest number at these edges; where both are equal, one is added.

    Example:
        >>> Axes(10, 10, 110, 60, (0.0, 10.0), (0.0, 5.0)).place(5.0, 0.0)
        (60.0, 60.0)
    """

    left: float
    top: float
    right: float
    bottom: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def __post_init__(self) -> None:
        for name in ("x_range", "y_range"):
            low, high = getattr(self, name)
            object.__setattr__(self, name, (float(low), float(high) if high > low else float(low) + 1.0))

    def place(self, x: float, y: float) -> tuple[float, float]:
        """The pixel of a point."""
        across = (x - self.x_range[0]) / (self.x_range[1] - self.x_range[0])
        up = (y - self.y_range[0]) / (self.y_range[1] - self.y_range[0])
        return self.left + across * (self.right - self.left), self.bottom - up * (self.bottom - self.top)

    def draw(self, draw: ImageDraw.ImageDraw, *, x_label: str = "", y_label: str = "") -> None:
        """Draws the frame, a grid at round numbers, these numbers and what they are."""
        for number in ticks(*self.x_range):
            x = self.place(number, self.y_range[0])[0]
            draw.line([x, self.top, x, self.bottom], fill=LIGHT)
            draw_text(draw, (x, self.bottom + 6), f"{number:g}", anchor="ma", size=12)
        for number in ticks(*self.y_range):
            y = self.place(self.x_range[0], number)[1]
            draw.line([self.left, y, self.right, y], fill=LIGHT)
            draw_text(draw, (self.left - 6, y), f"{number:g}", anchor="rm", size=12)
        draw.rectangle([self.left, self.top, self.right, self.bottom], outline=GREY)
        draw_text(draw, ((self.left + self.right) / 2, self.bottom + 24), x_label, anchor="ma")
        draw_text(draw, (self.left, self.top - 6), y_label, anchor="lb")
