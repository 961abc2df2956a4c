"""Whether two calculations give the same numbers, and whether a number is a mean over the rows of a batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf


def tolerance_of(value: Any) -> float:
    """By how much, relatively, two calculations of one value may differ."""
    return 0.1 if value.dtype in (tf.float16, tf.bfloat16) or keras.config.dtype_policy().name != "float32" else 0.01


def are_close(value: Any, other: Any) -> bool:
    """Whether two tensors of one shape are equal up to rounding; shapes that differ and NaN cannot be compared."""
    a, b = np.asarray(tf.cast(value, tf.float64)), np.asarray(tf.cast(other, tf.float64))
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return True
    return bool(np.abs(a - b).max(initial=0.0) <= tolerance_of(value) * np.abs(b).max(initial=0.0) + 1e-6)


def repeats(value: Any, again: Any) -> bool:
    """Whether a value came again, in another run."""
    return again is not None and again.shape == value.shape and are_close(value, again)


def is_mean(both: Any, seconds: Any, first: Any, second: Any, *, draws: bool) -> bool:
    """Whether a value can be a mean over rows, by what it is for two parts together, for the second twice, for each.

    Where the step `draws` random numbers, only the difference of the first two tells.
    """
    whole, repeated, one, other = (np.asarray(tf.cast(v, tf.float64)).ravel() for v in (both, seconds, first, second))
    if not all(np.isfinite(v).all() for v in (whole, repeated, one, other)):
        return True
    norm, tolerance = np.linalg.norm, tolerance_of(both)
    by_difference = norm((whole - repeated) - (one - other) / 2)
    if by_difference > 4 * tolerance * max(norm(whole - repeated), norm(one - other)) + tolerance**2 * norm(whole):
        return False
    return draws or bool(norm(whole - (one + other) / 2) <= tolerance * max(norm(one), norm(other)) + 1e-6)
