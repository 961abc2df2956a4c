"""Scores of forecasts and baselines."""

from collections.abc import Iterable, Mapping

import numpy as np

from tfaccel.training.verdict.baseline_scores import BaselineScores


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
