"""Converts the return value of a custom `HyperModel.fit` to metrics, in all forms that Keras Tuner accepts."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import keras
import keras_tuner
import numpy as np

from tfaccel.errors import SearchError
from tfaccel.tuning.objective import DEFAULT_NAME, Objective


def own_fit_metrics(result: Any, objective: Objective, measured: Mapping[str, float] | None = None) -> dict[str, float]:
    """The metrics of a trial, from the return value of its `fit`.

    Args:
        result: a `History` (its best epoch is used), a dictionary of metrics, the objective's value, or a list of these
            (averaged).
        objective: the objective of the search.
        measured: additional values that the objective needs, such as the model's size.

    Raises:
        SearchError: for any other type, or if the objective is missing.

    Example:
        >>> own_fit_metrics([{"score": 1.0}, {"score": 2.0}], Objective((("score", "max"),)))
        {'score': 1.5}
    """
    if isinstance(result, keras.callbacks.History):
        found = _best_epoch(result.history, objective, measured or {})
    elif isinstance(result, list | tuple) and result:
        parts = [own_fit_metrics(part, objective, measured) for part in result]
        return {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}
    elif isinstance(result, Mapping):
        found = {str(name): float(value) for name, value in result.items()}
    elif isinstance(result, Real | np.generic) and not isinstance(result, bool):
        found = {objective.name: float(result)}
    else:
        raise SearchError(
            "A custom fit or run_trial must return a History, a dictionary of metrics, a number, or a list of "
            f"these. Received: {type(result).__name__}."
        )
    found = {**found, **(measured or {})}
    missing = [name for name in objective.names if name not in found]
    if missing == [DEFAULT_NAME]:
        raise SearchError(
            "Unless a custom fit or run_trial returns a number, which is minimized, it needs objective=NAME:min or "
            f"NAME:max. It returned: {', '.join(found) or 'nothing'}."
        )
    if missing:
        raise SearchError(
            f"A custom fit or run_trial must return the objective {missing[0]!r}. "
            f"It returned: {', '.join(found) or 'nothing'}."
        )
    return found


def fatal_unless_metrics(result: Any, objective: Objective, measured: Mapping[str, float]) -> dict[str, float]:
    """The metrics that a `fit` or `run_trial` returned.

    Raises:
        keras_tuner.errors.FatalError: if the result is invalid, since every trial would fail the same way.
    """
    try:
        return own_fit_metrics(result, objective, measured)
    except SearchError as error:
        raise keras_tuner.errors.FatalError(str(error)) from error


def _best_epoch(
    history: Mapping[str, list[float]], objective: Objective, measured: Mapping[str, float]
) -> dict[str, float]:
    """The metrics of the best epoch; metrics missing from some epochs are left out."""
    num_epochs = max(map(len, history.values()), default=0)
    whole = {name: values for name, values in history.items() if len(values) == num_epochs}
    epochs = [{name: float(values[e]) for name, values in whole.items()} | dict(measured) for e in range(num_epochs)]
    best: dict[str, float] = epochs[0] if epochs else {}
    if not all(name in best for name in objective.names):
        return best
    for epoch in epochs[1:]:
        if objective.better(objective.value(epoch), objective.value(best)):
            best = epoch
    return best
