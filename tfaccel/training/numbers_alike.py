"""Whether two calculations give the same numbers, and whether a number is a mean over the rows of a batch."""

from __future__ import annotations

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


def repeats(value: Any, again: Any) -> bool:
    """Whether a value came again, in another run."""
    return again is not None and again.shape == value.shape and are_close(value, again)


def spread_of(value: Any, reseeded: Any) -> float:
    """By how much other random numbers change a value; 0.0 where none are drawn."""
    if reseeded is None or reseeded.shape != value.shape or repeats(value, reseeded):
        return 0.0
    return float(np.linalg.norm(np.asarray(tf.cast(value, tf.float64)) - np.asarray(tf.cast(reseeded, tf.float64))))


def is_mean(both: Any, seconds: Any, first: Any, second: Any, *, spread: float) -> bool:
    """Whether a value can be a mean over rows, by what it is for two parts together, for the second twice, for each.

    Where random numbers `spread` it, the difference of the first two tells, as far as it goes beyond that.
    """
    whole, repeated, one, other = (np.asarray(tf.cast(v, tf.float64)).ravel() for v in (both, seconds, first, second))
    if not all(np.isfinite(v).all() for v in (whole, repeated, one, other)):
        return True
    norm, tolerance = np.linalg.norm, tolerance_of(both)
    by_difference = norm((whole - repeated) - (one - other) / 2)
    allowed = 4 * tolerance * max(norm(whole - repeated), norm(one - other)) + tolerance**2 * norm(whole)
    if by_difference > allowed + MANY_SPREADS * spread:
        return False
    exact = 1e-4 if tolerance < 0.1 and not both.shape.rank and not tf.config.list_logical_devices("GPU") else tolerance
    return spread > 0 or bool(norm(whole - (one + other) / 2) <= exact * max(norm(one), norm(other)) + 1e-6)
