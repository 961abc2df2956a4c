"""Forecasting baselines on the same window as the model: nearest neighbors and ridge regression."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfaccel.data.series.series_set import SeriesSet

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
        >>> from tfaccel.data.series.series_set import pendulum_series
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
