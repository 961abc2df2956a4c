"""Whether two calculations give the same numbers, and whether a number is a mean over the rows of a batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

MANY_SPREADS = 6  # so much further apart, values differ by more than by their random numbers


def tolerance_of(value: Any) -> float:
    """By how much, relatively, two calculations of one value may differ."""
    return 0.1 if value.dtype in (tf.float16, tf.bfloat16) or keras.config.dtype_policy().name != "float32" else 0.01


def are_close(value: Any, other: Any, spread: float = 0.0) -> bool:
    """Whether two tensors of one shape are equal up to rounding; shapes that differ and NaN cannot be compared.

    Args:
        value, other: the tensors.
        spread: by how much random numbers alone change them.
    """
    a, b = np.asarray(tf.cast(value, tf.float64)), np.asarray(tf.cast(other, tf.float64))
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return True
    allowed = tolerance_of(value) * np.abs(b).max(initial=0.0) + MANY_SPREADS * spread + 1e-6
    return bool(np.abs(a - b).max(initial=0.0) <= allowed)


def spread_of(value: Any, others: Iterable[Any]) -> float:
    """By how much random numbers change a value: the largest distance of what came in other runs."""
    mine, largest = np.asarray(tf.cast(value, tf.float64)), 0.0
    for other in others:
        if other is None or other.shape != value.shape or not np.isfinite(other).all():
            return np.inf
        largest = max(largest, float(np.linalg.norm(mine - np.asarray(tf.cast(other, tf.float64)))))
    return largest


def is_mean(both: Any, first: Any, second: Any, seconds: Any = None, *, spread: float = 0.0) -> bool:
    """Whether a value can be a mean over rows, by what it is for two parts together, for each, for the second twice.

    Args:
        both, first, second: the value for two parts of equally many rows together, and for each.
        seconds: the value for the second part twice. Where it is given, random numbers are drawn: what the first part
            changes tells, as far as it goes beyond their `spread`.
        spread: by how much random numbers change the value.
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
    return bool(by_difference <= allowed + MANY_SPREADS * spread)
