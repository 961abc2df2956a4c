"""Compares the values of several runs, and checks whether a value is a mean over the rows of a batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

MAX_SPREADS = 6  # larger differences are not due to random numbers


def tolerance_of(value: Any) -> float:
    """The relative tolerance when one value is computed in two ways."""
    return 0.1 if value.dtype in (tf.float16, tf.bfloat16) or keras.config.dtype_policy().name != "float32" else 0.01


def are_close(value: Any, other: Any, spread: float = 0.0) -> bool:
    """Whether two tensors are equal up to rounding; also True if their shapes differ or values are not finite.

    Args:
        value, other: the tensors to compare.
        spread: how far random numbers alone move the value (see `spread_of`).
    """
    a, b = np.asarray(tf.cast(value, tf.float64)), np.asarray(tf.cast(other, tf.float64))
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return True
    allowed = tolerance_of(value) * np.abs(b).max(initial=0.0) + MAX_SPREADS * spread + 1e-6
    return bool(np.abs(a - b).max(initial=0.0) <= allowed)


def spread_of(value: Any, others: Iterable[Any]) -> float:
    """How far random numbers move a value: the largest distance to its values in other runs; infinite if unknown."""
    mine, largest = np.asarray(tf.cast(value, tf.float64)), 0.0
    for other in others:
        if other is None or other.shape != value.shape or not np.isfinite(other).all():
            return np.inf
        largest = max(largest, float(np.linalg.norm(mine - np.asarray(tf.cast(other, tf.float64)))))
    return largest


def is_mean(both: Any, first: Any, second: Any, seconds: Any = None, *, spread: float = 0.0) -> bool:
    """Whether a value can be a mean over the rows, given its values on two parts of a batch and on both together.

    Args:
        both, first, second: the value on both parts together, and on each alone. They have equally many rows.
        seconds: the value on the second part repeated twice, if the step draws random numbers. The effect of
            replacing the second part by the first is then compared, allowing for `spread`.
        spread: how far random numbers alone move the value (see `spread_of`).
    """
    values = (both, first, second, second if seconds is None else seconds)
    whole, one, other, repeated = (np.asarray(tf.cast(value, tf.float64)).ravel() for value in values)
    if not all(np.isfinite(v).all() for v in (whole, one, other, repeated)):
        return True
    norm, tolerance = np.linalg.norm, tolerance_of(both)
    if seconds is None:
        is_exact = tolerance < 0.1 and not both.shape.rank and not tf.config.list_logical_devices("GPU")
        by_mean = norm(whole - (one + other) / 2)
        return bool(by_mean <= (1e-4 if is_exact else tolerance) * max(norm(one), norm(other)) + 1e-6)
    by_difference = norm((whole - repeated) - (one - other) / 2)
    allowed = 4 * tolerance * max(norm(whole - repeated), norm(one - other)) + tolerance**2 * norm(whole)
    return bool(by_difference <= allowed + MAX_SPREADS * spread)
