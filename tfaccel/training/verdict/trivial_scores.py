"""Scores of trivial predictors on the validation targets: the most frequent class, the mean, the median."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tfaccel.training.verdict.baseline_scores import BaselineScores

_ACCURACIES = ("accuracy", "acc", "categorical_accuracy", "sparse_categorical_accuracy", "binary_accuracy")
_ABSOLUTE = ("mean_absolute_error", "mae", "MAE")
_SQUARED = ("mean_squared_error", "mse", "MSE")
_ROOT = ("root_mean_squared_error", "rmse", "RMSE")


def trivial_scores(batches: Iterable[Any], final: Mapping[str, float]) -> BaselineScores | None:
    """Compares a finished model with a trivial predictor, for the first metric that has one.

    Accuracy is compared with the most frequent class, mean absolute error with the median, and squared errors with the
    mean. None for other metrics, for several outputs, and for targets other than one class or a vector of numbers per
    example.

    Args:
        batches: validation batches: (inputs, targets) or (inputs, targets, weights).
        final: the model's metrics on these batches.

    Example:
        >>> batches = [(None, np.array([0, 2])), (None, np.array([2, 1]))]
        >>> trivial_scores(batches, {"loss": 1.1, "accuracy": 0.75}).beside()
        'accuracy 75.0 % vs. 50.0 % (most frequent class)'
    """
    known = [name for name in final if name in (*_ACCURACIES, *_ABSOLUTE, *_SQUARED, *_ROOT)]
    if not known or not np.isfinite(final[known[0]]):
        return None
    targets = _targets(batches)
    if targets is None:
        return None
    metric, score, examples = known[0], float(final[known[0]]), len(targets)
    if metric in _ACCURACIES:
        classes = _classes(targets)
        if classes is None:
            return None
        share = float(np.unique(classes, return_counts=True)[1].max() / examples)
        return BaselineScores(
            metric=metric, score=score, trivial={"most frequent class": share}, is_fraction=True, num_examples=examples
        )
    values = targets.reshape(examples, -1).astype(np.float64)
    if metric in _ABSOLUTE:
        trivial = {"median": float(np.abs(values - np.median(values, axis=0)).mean())}
    else:
        variance = float(np.square(values - values.mean(axis=0)).mean())
        trivial = {"mean": variance if metric in _SQUARED else variance**0.5}
    return BaselineScores(
        metric=metric, score=score, trivial=trivial, higher_is_better=False, perfect=0.0, num_examples=examples
    )


def _targets(batches: Iterable[Any]) -> np.ndarray | None:
    found = []
    for batch in batches:
        target = batch[1] if isinstance(batch, tuple) and len(batch) >= 2 else None
        if target is None or not hasattr(target, "dtype") or not hasattr(target, "__array__"):
            return None
        found.append(np.asarray(target))
        if found[-1].ndim not in (1, 2) or found[-1].dtype.kind not in "biuf":
            return None
    return np.concatenate(found) if found and sum(map(len, found)) else None


def _classes(targets: np.ndarray) -> np.ndarray | None:
    """The class of each example, from integer or one-hot labels; None for other targets."""
    if targets.ndim == 1 or targets.shape[1] == 1:
        flat = targets.reshape(-1)
        return flat if np.array_equal(flat, np.round(flat)) else None
    is_one_hot = np.isclose(targets.sum(axis=1), 1).all() and (targets.max(axis=1) > 0.5).all()
    return targets.argmax(axis=1) if is_one_hot else None
