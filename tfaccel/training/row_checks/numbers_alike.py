"""Tests whether two computations agree, and whether a value is a mean over the rows of a batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

MANY_SPREADS = 6  # a difference of more spreads than this is not due to random numbers


def tolerance_of(value: Any) -> float:
    """The relative tolerance for two computations of one value."""
    return 0.1 if value.dtype in (tf.float16, tf.bfloat16) or keras.config.dtype_policy().name != "float32" else 0.01


def are_close(value: Any, other: Any, spread: float = 0.0) -> bool:
    """Whether two tensors are equal up to rounding; True also for different shapes or non-finite values.

    Args:
        value, other: the tensors.
        spread: how much random numbers alone change them.
    """
    a, b = np.asarray(tf.cast(value, tf.float64)), np.asarray(tf.cast(other, tf.float64))
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return True
    allowed = tolerance_of(value) * np.abs(b).max(initial=0.0) + MANY_SPREADS * spread + 1e-6
    return bool(np.abs(a - b).max(initial=0.0) <= allowed)


def spread_of(value: Any, others: Iterable[Any]) -> float:
    """How much random numbers change a value: its largest distance from the values of other runs."""
    mine, largest = np.asarray(tf.cast(value, tf.float64)), 0.0
    for other in others:
        if other is None or other.shape != value.shape or not np.isfinite(other).all():
            return np.inf
        largest = max(largest, float(np.linalg.norm(mine - np.asarray(tf.cast(other, tf.float64)))))
    return largest


def is_mean(both: Any, first: Any, second: Any, seconds: Any = None, *, spread: float = 0.0) -> bool:
    """Whether a value can be a mean over rows, given its values for two parts of a batch, together and alone.

    Args:
        both, first, second: the value for two parts with equally many rows, together and alone.
        seconds: the value for the second part repeated twice; given if the step draws random numbers. The effect of
            the first part is then compared, with an allowance for `spread`.
        spread: how much random numbers change the value.
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
