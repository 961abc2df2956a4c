"""Forecasts: scores, baselines, calibrated intervals and plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.series_set import SeriesSet
from tfaccel.errors import DataError
from tfaccel.reporting.figures import BLACK, BLUE, GREY, LIGHT, ORANGE, new_figure, saved, shown
from tfaccel.training.verdict import BaselineScores

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def forecast_scores(
    future: np.ndarray, quantiles: np.ndarray, as_trained: np.ndarray, baselines: Mapping[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Computes mean absolute errors, each column in its own unit, and the coverage of the intervals.

    Args:
        future: actual values, of shape (num_forecasts, horizon, num_columns).
        quantiles: low, middle and high forecasts, of shape (num_forecasts, horizon, num_columns, 3).
        as_trained: the same before intervals were widened.
        baselines: name -> forecasts, shaped like `future`.

    Example:
        >>> future = np.array([[[1.0]], [[2.0]]])
        >>> quantiles = future[..., np.newaxis] + [-0.5, 0.25, 0.5]
        >>> forecast_scores(future, quantiles, quantiles - 0.75, {"naive": future - 1})["network"]
        {'mean absolute error': 0.25, 'in 80 % interval': 1.0, "in model's own": 0.0}
    """
    network = {"mean absolute error": float(np.abs(future - quantiles[..., 1]).mean())}
    for name, found in (("in 80 % interval", quantiles), ("in model's own", as_trained)):
        network[name] = float(((future >= found[..., 0]) & (future <= found[..., 2])).mean())
    errors = {
        name: {"mean absolute error": float(np.abs(future - values).mean())} for name, values in baselines.items()
    }
    return {"network": network, **errors}


def compare_with_baselines(
    scores: Mapping[str, Mapping[str, float]], simple: Iterable[str], *, num_examples: int
) -> BaselineScores:
    """Compares the network's mean absolute error with the baselines'.

    Args:
        scores: the result of `forecast_scores`.
        simple: names of the baselines that repeat past values.
        num_examples: number of forecasts.
    """
    errors = {name: values["mean absolute error"] for name, values in scores.items()}
    return BaselineScores(
        metric="mean absolute error",
        score=errors.pop("network"),
        trivial={name: errors.pop(name) for name in simple},
        baselines=errors,
        higher_is_better=False,
        perfect=0.0,
        num_examples=num_examples,
    )


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


def interval_factors(future: np.ndarray, quantiles: np.ndarray, *, coverage: float = 0.8) -> np.ndarray:
    """Computes, per column, the factors by which the lower and upper halves of intervals must be scaled.

    Each value's distance from the middle is divided by the distance of the interval's edge on that side; the factor is
    the quantile of these ratios that leaves a fraction (1 - coverage) / 2 of all values beyond the edge.

    Args:
        future: actual values, of shape (num_forecasts, horizon, num_columns).
        quantiles: low, middle and high forecasts, of shape (num_forecasts, horizon, num_columns, 3).
        coverage: fraction of the values that the interval should contain.

    Returns:
        Factors of the lower and the upper half, of shape (num_columns, 2); ones if there are no forecasts.

    Source: Romano et al., Conformalized quantile regression, 2019, https://arxiv.org/abs/1905.03222, with factors.

    Example:
        >>> errors = np.linspace(-1, 1, 101).reshape(101, 1, 1)
        >>> quantiles = np.broadcast_to(np.array([-0.4, 0.0, 0.4]), (101, 1, 1, 3))
        >>> interval_factors(errors, quantiles).round(3).tolist()
        [[2.0, 2.0]]
    """
    num_columns = future.shape[-1]
    if len(future) == 0:
        return np.ones((num_columns, 2))
    middle = quantiles[..., 1]
    below = (middle - future) / np.maximum(middle - quantiles[..., 0], 1e-9)
    above = (future - middle) / np.maximum(quantiles[..., 2] - middle, 1e-9)
    level = 1 - (1 - coverage) / 2
    halves = [np.quantile(ratios.reshape(-1, num_columns), level, axis=0) for ratios in (below, above)]
    return np.maximum(np.stack(halves, axis=1), 0.0)


def with_factors(quantiles: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Scales the lower and upper halves of intervals by factors; the middle stays.

    Example:
        >>> with_factors(np.array([[[[1.0, 2.0, 3.0]]]]), np.array([[2.0, 0.5]])).ravel().tolist()
        [0.0, 2.0, 2.5]
    """
    middle = quantiles[..., 1:2]
    all_factors = np.stack([factors[:, 0], np.ones(len(factors)), factors[:, 1]], axis=-1)
    return np.asarray(middle + (quantiles - middle) * all_factors)


MAX_WINDOWS = 10_000
_NEIGHBOURS = (1, 3, 5, 10, 20)
_PENALTIES = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
_VALIDATION_FRACTION = 0.1


def regression_forecasts(series: SeriesSet, starts: np.ndarray, *, window: int, horizon: int) -> dict[str, np.ndarray]:
    """Forecasts by nearest neighbors and ridge regression, fitted to all windows of the training split.

    The number of neighbors, the length of the window they are compared by, and the penalty are chosen on the last tenth
    of the training split.

    Args:
        series: its first `num_train` rows are the training split.
        starts: the first row of each forecast.
        window: past rows that forecasts are based on.
        horizon: rows to forecast.

    Returns:
        Name -> forecasts, of shape (num_starts, horizon, num_targets); empty if the training split is too short.

    Example:
        >>> from tfaccel.data.series_set import pendulum_series
        >>> found = regression_forecasts(pendulum_series(), np.array([3300]), window=4, horizon=2)
        >>> [forecasts.shape for forecasts in found.values()]
        [(1, 2, 2), (1, 2, 2)]
    """
    from sklearn.linear_model import Ridge
    from sklearn.neighbors import KNeighborsRegressor

    values, num_train, targets = series.values, series.num_train, list(series.targets)
    scale = values[:num_train].std(axis=0)
    scaled = (values - values[:num_train].mean(axis=0)) / np.where(scale > 0, scale, 1.0)

    def past(rows: np.ndarray, length: int) -> np.ndarray:
        return scaled[rows[:, np.newaxis] + np.arange(-length, 0)].reshape(len(rows), -1)

    def future(rows: np.ndarray) -> np.ndarray:
        return values[rows[:, np.newaxis] + np.arange(horizon)][..., targets]

    rows = np.arange(window, num_train - horizon + 1)
    held_out = rows[rows >= num_train * (1 - _VALIDATION_FRACTION)]
    fitted = rows[rows <= num_train * (1 - _VALIDATION_FRACTION) - horizon]
    if len(fitted) < max(_NEIGHBOURS) or not len(held_out):
        return {}

    def forecasts(models: dict[Any, Any]) -> tuple[Any, np.ndarray]:
        def fitted_to(choice: Any, known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
            known, length = known[:: -(-len(known) // MAX_WINDOWS)], choice[1]
            regression = models[choice].fit(past(known, length), future(known).reshape(len(known), -1))
            return np.asarray(regression.predict(past(wanted, length))).reshape(len(wanted), horizon, len(targets))

        errors = {choice: np.abs(fitted_to(choice, fitted, held_out) - future(held_out)).mean() for choice in models}
        best = min(errors, key=lambda choice: float(errors[choice]))
        return best, fitted_to(best, rows, starts)

    lengths = sorted({max(1, window // part) for part in (1, 4, 16)})
    neighbours = {(k, n): KNeighborsRegressor(k, weights="distance") for k in _NEIGHBOURS for n in lengths}
    (num_neighbours, _), nearest = forecasts(neighbours)
    _, ridge = forecasts({(penalty, window): Ridge(alpha=penalty) for penalty in _PENALTIES})
    return {f"{num_neighbours} nearest neighbors": nearest, "ridge regression": ridge}
