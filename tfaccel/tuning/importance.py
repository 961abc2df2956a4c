"""Hyperparameter importance."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

MIN_TRIALS = 6  # fewer are not informative
_NUM_TREES, _NUM_SHUFFLES = 200, 20


def importances(
    values: Sequence[Mapping[str, Any]],
    scores: Sequence[float],
    *,
    names: Sequence[str],
    logarithmic: Collection[str] = (),
) -> dict[str, float] | None:
    """The relative importance of each hyperparameter for the score, largest first; None for too few trials.

    A random forest is fitted to predict the score from the hyperparameters. The permutation importance of a
    hyperparameter is how much the forest's error grows when its values are shuffled across trials. With few trials,
    treat it as a rough estimate.

    Args:
        values: the hyperparameters of each trial; a missing one counts as a separate value.
        scores: one per trial.
        names: the hyperparameters to compare.
        logarithmic: hyperparameters sampled on a log scale.

    Example:
        >>> trials = [{"a": a, "b": b} for a in (1, 2, 3) for b in (1, 2, 3)]
        >>> shares = importances(trials, [10 * trial["a"] + trial["b"] for trial in trials], names=["a", "b"])
        >>> list(shares), shares["a"] > 0.9
        (['a', 'b'], True)
    """
    if len(scores) < MIN_TRIALS:
        return None
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    columns = np.column_stack([_column([trial.get(name) for trial in values], name in logarithmic) for name in names])
    target = np.asarray(scores)
    forest = RandomForestRegressor(_NUM_TREES, random_state=0).fit(columns, target)
    found = permutation_importance(forest, columns, target, n_repeats=_NUM_SHUFFLES, random_state=0)
    means = np.maximum(found.importances_mean, 0.0)
    total = float(means.sum()) or 1.0
    shares = {name: float(mean) / total for name, mean in zip(names, means, strict=True)}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _column(values: list[Any], logarithmic: bool) -> np.ndarray:
    """Encodes values as numbers: unchanged, as logarithms, or as the index of each string."""
    known = [value for value in values if value is not None]
    if any(isinstance(value, str) for value in known):
        places = {value: place for place, value in enumerate(sorted(map(str, known)))}
        return np.array([-1.0 if value is None else float(places[str(value)]) for value in values])
    numbers = [math.log(value) if logarithmic and value > 0 else float(value) for value in known]
    missing = min(numbers, default=0.0) - 1.0
    present = iter(numbers)
    return np.array([missing if value is None else next(present) for value in values])
