"""Calibration of prediction intervals on data that the model was not trained on."""

import numpy as np


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
