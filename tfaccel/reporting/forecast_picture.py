"""A picture of forecasts with their intervals: the past, what came, and what was foretold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
from PIL import Image, ImageDraw

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import BLACK, BLUE, GREY, ORANGE, WHITE, draw_text, save_picture
from tfaccel.reporting.plot_axes import Axes

_WIDTH, _HEIGHT = 430, 220  # of a panel's axes, in pixels
_LEFT, _TOP, _RIGHT, _BOTTOM = 62, 46, 16, 48
_LEGEND = 40
_SHADE = (190, 212, 240)
_MOST_ROWS, _MOST_COLUMNS = 4, 2


@dataclass(frozen=True)
class Forecast:
    """One forecast of one column.

    Arguments:
        title: what is forecast, and when.
        past: values up to the forecast, of shape (num_past,).
        future: what came, of shape (horizon,).
        quantiles: the low, the middle and the high one that were foretold, of shape (horizon, 3).
        baseline: what the baseline foretold, of shape (horizon,).
    """

    title: str
    past: np.ndarray
    future: np.ndarray
    quantiles: np.ndarray
    baseline: np.ndarray


def save_forecast_picture(
    path: str | PathLike[str], forecasts: Sequence[Forecast], *, num_columns: int, interval: str, baseline: str
) -> None:
    """Draws a panel for each forecast, row by row, and writes them as PNG, whole or not at all.

    The past and what came are black, the middle forecast and its interval blue, the baseline orange. At most two panels
    stand beside each other and four below each other; further ones are left out.

    Arguments:
        path: the file to write.
        forecasts: at least one.
        num_columns: panels beside each other, 1 or 2.
        interval: what the interval is, for the legend, such as "80 % interval".
        baseline: the name of the baseline.

    Raises:
        DataError: if there is no forecast, or its parts differ in length.

    Example:
        >>> import tempfile
        >>> wave = np.sin(np.arange(40.0))
        >>> quantiles = wave[30:, np.newaxis] + [-0.2, 0.1, 0.3]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = f"{folder}/forecasts.png"
        ...     forecast = Forecast("wave", wave[:30], wave[30:], quantiles, wave[20:30])
        ...     save_forecast_picture(path, [forecast], num_columns=1, interval="80 % interval", baseline="naive")
        ...     with Image.open(path) as picture:
        ...         picture.size
        (508, 354)
    """
    num_columns = min(num_columns, _MOST_COLUMNS)
    shown = list(forecasts)[: num_columns * _MOST_ROWS]
    wrong = [one for one in shown if one.quantiles.shape != (*one.future.shape, 3)]
    wrong += [one for one in shown if one.baseline.shape != one.future.shape]
    if not shown or wrong:
        shapes = [(one.future.shape, one.quantiles.shape, one.baseline.shape) for one in wrong]
        raise DataError(
            "A picture needs a forecast; what came, three quantiles and the baseline must be of one length. "
            f"Received: {shapes or 'none'}."
        )
    width, height = _LEFT + _WIDTH + _RIGHT, _TOP + _HEIGHT + _BOTTOM
    num_rows = -(-len(shown) // num_columns)
    picture = Image.new("RGB", (num_columns * width, num_rows * height + _LEGEND), WHITE)
    draw = ImageDraw.Draw(picture)
    _draw_legend(draw, interval, baseline)
    for number, forecast in enumerate(shown):
        left, top = number % num_columns * width, number // num_columns * height + _LEGEND
        _draw_panel(draw, forecast, left + _LEFT, top + _TOP)
    save_picture(path, picture)


def _draw_panel(draw: ImageDraw.ImageDraw, forecast: Forecast, left: int, top: int) -> None:
    low, middle, high = forecast.quantiles.T
    values = [forecast.past, forecast.future, low, high, forecast.baseline]
    lowest, highest = (float(edge) for edge in (min(v.min() for v in values), max(v.max() for v in values)))
    margin = 0.06 * (highest - lowest)
    num_past, horizon = len(forecast.past), len(forecast.future)
    bounds = (lowest - margin, highest + margin)
    axes = Axes(left, top, left + _WIDTH, top + _HEIGHT, (-num_past + 1, horizon), bounds)
    axes.draw(draw, x_label="steps from the start of the forecast")
    draw_text(draw, (left, top - 24), forecast.title, size=15)
    ahead = np.arange(1, horizon + 1)
    upper = [axes.place(x, y) for x, y in zip(ahead.tolist(), high.tolist(), strict=True)]
    lower = [axes.place(x, y) for x, y in zip(ahead.tolist(), low.tolist(), strict=True)]
    if horizon > 1:
        draw.polygon([*upper, *reversed(lower)], fill=_SHADE)
    start = axes.place(0, axes.y_range[0])[0]
    draw.line([start, top, start, top + _HEIGHT], fill=GREY)
    _draw_line(draw, axes, np.arange(-num_past + 1, 1), forecast.past, BLACK)
    _draw_line(draw, axes, ahead, forecast.baseline, ORANGE)
    _draw_line(draw, axes, ahead, forecast.future, BLACK)
    _draw_line(draw, axes, ahead, middle, BLUE)


def _draw_line(
    draw: ImageDraw.ImageDraw, axes: Axes, times: np.ndarray, values: np.ndarray, color: tuple[int, int, int]
) -> None:
    points = [axes.place(x, y) for x, y in zip(times.tolist(), values.tolist(), strict=True)]
    if len(points) > 1:
        draw.line(points, fill=color, width=2, joint="curve")
    else:
        draw.ellipse([points[0][0] - 3, points[0][1] - 3, points[0][0] + 3, points[0][1] + 3], fill=color)


def _draw_legend(draw: ImageDraw.ImageDraw, interval: str, baseline: str) -> None:
    x = 20.0
    for text, color in (("what came", BLACK), ("forecast", BLUE), (interval, _SHADE), (baseline, ORANGE)):
        draw.rectangle([x, 18, x + 22, 24], fill=color)
        draw_text(draw, (x + 28, 21), text, anchor="lm")
        x += 50 + draw.textlength(text, font_size=13)
