"""The season length of a series, and the seasonal naive forecast."""

import numpy as np

_MIN_SEASON = 2
_MAX_FRACTION = 1 / 3  # of the series


def season_length(values: np.ndarray) -> int:
    """The season length of a series: the lag of the highest peak of its autocorrelation.

    Args:
        values: of shape (num_times, num_columns); the columns' autocorrelations are averaged.

    Returns:
        At least 1, which means no season: the naive forecast then repeats the last value.

    Example:
        >>> season_length(np.sin(2 * np.pi * np.arange(120) / 12)[:, np.newaxis])
        12
    """
    longest = int(len(values) * _MAX_FRACTION)
    centred = (values - values.mean(axis=0)).astype(np.float64)
    deviations = centred.std(axis=0)
    centred = centred[:, deviations > 0] / deviations[deviations > 0]
    if longest <= _MIN_SEASON or centred.shape[1] == 0:
        return 1
    correlations = np.array([np.mean(centred[:-lag] * centred[lag:]) for lag in range(1, longest + 1)])
    is_peak = (correlations[1:-1] > correlations[:-2]) & (correlations[1:-1] >= correlations[2:])
    peaks = np.flatnonzero(is_peak) + 1  # the first lag is 1
    peaks = peaks[correlations[peaks] > 0]
    return int(peaks[np.argmax(correlations[peaks])]) + 1 if len(peaks) else 1


def seasonal_naive(values: np.ndarray, starts: np.ndarray, *, horizon: int, season: int) -> np.ndarray:
    """Forecasts that repeat the last whole season before each start.

    Args:
        values: the series, of shape (num_times, num_columns).
        starts: the first time step of each forecast.
        horizon: number of time steps to forecast.
        season: season length; no start may be smaller.

    Returns:
        Of shape (num_starts, horizon, num_columns).

    Source: Hyndman and Athanasopoulos, Forecasting: principles and practice, 2021, section 5.2.

    Example:
        >>> seasonal_naive(np.arange(6.0)[:, np.newaxis], np.array([5]), horizon=3, season=2)[0, :, 0].tolist()
        [3.0, 4.0, 3.0]
    """
    ahead = np.arange(horizon)
    return np.asarray(values[starts[:, np.newaxis] - season + ahead % season])
