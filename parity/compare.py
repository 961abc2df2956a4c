"""The difference between two training runs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

_ON_REPLICA = re.compile(r" on replica \d+$")


def largest_difference(values: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> tuple[float, str]:
    """The largest difference over all values of two runs, and the name of the value where it occurs.

    The difference of two arrays `a` and `b` is `max |a - b| / max(1, max |b|)`: relative to the largest value of `b`,
    and absolute if all of `b` is below 1. Every replica is compared with the same reference. Values that are not finite
    must be equal in both. A missing value or a different shape is an infinite difference.

    Args:
        values: arrays by name; a name may end in " on replica 1".
        reference: arrays by name.

    Example:

    >>> largest_difference({"a": np.array([1.0, 4.5])}, {"a": np.array([1.0, 5.0])})
    (0.1, 'a')
    """
    names = {_ON_REPLICA.sub("", name) for name in values}
    for name in sorted(names ^ reference.keys()):
        return math.inf, f"{name} (only in the {'reference' if name in reference else 'run'})"
    largest, where = 0.0, ""
    for name, value in values.items():
        distance = difference(value, reference[_ON_REPLICA.sub("", name)])
        if distance > largest or not where:
            largest, where = distance, name
    return largest, where


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """`max |a - b| / max(1, max |b|)`; infinite if shapes or non-finite values differ."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a.shape != b.shape:
        return math.inf
    finite = np.isfinite(b)
    if not np.array_equal(finite, np.isfinite(a)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return math.inf
    if not finite.any():
        return 0.0
    return float(np.max(np.abs(a[finite] - b[finite])) / max(1.0, np.max(np.abs(b[finite]))))
