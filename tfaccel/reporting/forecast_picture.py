"""Plots of forecasts with their intervals, next to past and actual values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import BLACK, BLUE, GREY, LIGHT, ORANGE, new_figure, saved, shown

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tfaccel.data.series.series_set import SeriesSet

_MAX_ROWS, _MAX_COLUMNS = 4, 2
_PAST_SHOWN = 4  # length of the past that is plotted, as a multiple of the horizon


@dataclass(frozen=True)
class Forecast:
    """One forecast of one column.

    Args:
        title: title of the panel.
        past: values up to the forecast, of shape (num_past,).
        future: actual values, of shape (horizon,).
        quantiles: low, middle and high forecasts, of shape (horizon, 3).
        baseline: forecast of the baseline, of shape (horizon,).
        times: time stamps of `past` and `future`, dates (datetime64) or numbers, of shape (num_past + horizon,); None
            to count steps from the start of the forecast.
    """

    title: str
    past: np.ndarray
    future: np.ndarray
    quantiles: np.ndarray
    baseline: np.ndarray
    times: np.ndarray | None = None


def forecast_figure(forecasts: Sequence[Forecast], *, num_columns: int, interval: str, baseline: str) -> Figure:
    """Plots one panel per forecast, row by row.

    Past and actual values are black, the forecast and its interval blue, the baseline orange. At most four rows of two
    panels are drawn.

    Args:
        forecasts: at least one.
        num_columns: panels per row, 1 or 2.
        interval: the interval's label in the legend, such as "80 % interval".
        baseline: the name of the baseline.

    Raises:
        DataError: if there is no forecast, or its arrays differ in length.

    Example:
        >>> wave = np.sin(np.arange(40.0))
        >>> quantiles = wave[30:, np.newaxis] + [-0.2, 0.1, 0.3]
        >>> forecast = Forecast("wave", wave[:30], wave[30:], quantiles, wave[20:30])
        >>> figure = forecast_figure([forecast], num_columns=1, interval="80 % interval", baseline="naive")
        >>> figure.axes[0].get_xlabel()
        'steps from the start of the forecast'
    """
    num_columns = min(num_columns, _MAX_COLUMNS)
    drawn = list(forecasts)[: num_columns * _MAX_ROWS]
    wrong = [one for one in drawn if one.quantiles.shape != (*one.future.shape, 3)]
    wrong += [one for one in drawn if one.baseline.shape != one.future.shape]
    wrong += [one for one in drawn if one.times is not None and len(one.times) != len(one.past) + len(one.future)]
    if not drawn or wrong:
        shapes = [(one.future.shape, one.quantiles.shape, one.baseline.shape) for one in wrong]
        raise DataError(
            "A plot needs at least one forecast; `future`, three quantiles and the baseline must have the same length, "
            f"and `times` must cover past and future. Received: {shapes or 'none'}."
        )
    num_rows = -(-len(drawn) // num_columns)
    figure = new_figure(520 * num_columns, 40 + 300 * num_rows)
    all_axes = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    for axes, forecast in zip(all_axes, drawn, strict=False):
        _draw_panel(axes, forecast, interval, baseline)
    for axes in all_axes[len(drawn) :]:
        axes.remove()
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    return figure


save_forecast_picture = saved(forecast_figure)


def _draw_panel(axes: Axes, forecast: Forecast, interval: str, baseline: str) -> None:
    """Draws one forecast. Every line starts at the last past value, so that there are no gaps."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    past, horizon = forecast.past[-_PAST_SHOWN * len(forecast.future) :], len(forecast.future)
    steps = np.arange(1 - len(past), horizon + 1)
    times = steps if forecast.times is None else forecast.times[-len(steps) :]
    ahead, last = times[len(past) - 1 :], past[-1:]
    low, middle, high = (np.concatenate([last, values]) for values in forecast.quantiles.T)
    axes.plot(times, np.concatenate([past, forecast.future]), color=BLACK, label="actual")
    axes.plot(ahead, np.concatenate([last, forecast.baseline]), color=ORANGE, label=shown(baseline, 40))
    axes.fill_between(ahead, low, high, color=BLUE, alpha=0.25, linewidth=0, label=shown(interval, 40))
    axes.plot(ahead, middle, color=BLUE, label="forecast")
    axes.axvline(ahead[0], color=GREY, linewidth=1)
    axes.set_title(shown(forecast.title, 60), fontsize="medium")
    axes.grid(color=LIGHT)
    if np.issubdtype(times.dtype, np.datetime64):
        locator = AutoDateLocator(maxticks=7)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    else:
        axes.set_xlabel("time" if forecast.times is not None else "steps from the start of the forecast")


def save_forecasts(
    path: Path,
    series: SeriesSet,
    *,
    starts: np.ndarray,
    past: np.ndarray,
    future: np.ndarray,
    quantiles: np.ndarray,
    baseline: tuple[str, np.ndarray],
) -> None:
    """Saves a plot of two test forecasts per target, from one third and two thirds into the test split.

    Args:
        path: the PNG file to write.
        series: the series that was forecast.
        starts: the first row of each forecast.
        past: values up to it, of shape (num_forecasts, window, num_columns).
        future: actual values, of shape (num_forecasts, horizon, num_targets).
        quantiles: forecasts, of shape (num_forecasts, horizon, num_targets, 3); an 80 % interval.
        baseline: name and forecasts of the baseline, shaped like `future`.
    """
    picked = (len(starts) // 3, 2 * len(starts) // 3) if len(starts) > 2 else (0,)
    window, horizon = past.shape[1], future.shape[1]
    panels = [
        Forecast(
            f"{name}, from row {starts[row] + 1}",
            past[row, :, series.targets[number]],
            future[row, :, number],
            quantiles[row, :, number],
            baseline[1][row, :, number],
            None if series.times is None else series.times[starts[row] - window : starts[row] + horizon],
        )
        for number, name in enumerate(series.target_names)
        for row in picked
    ]
    save_forecast_picture(path, panels, num_columns=len(picked), interval="80 % interval", baseline=baseline[0])
