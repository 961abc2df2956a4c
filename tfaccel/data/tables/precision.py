"""What float32, in which models compute, loses of numbers."""

from __future__ import annotations

import numpy as np

from tfaccel.errors import DataError

_MAX_ERROR = 1e-4  # as a fraction of how much numbers vary
_SMALLEST_TARGETS, _LARGEST_TARGETS = 1e-15, 1e15
_SAMPLE = 10_000  # numbers of which quartiles are taken


def lost_in_float32(numbers: np.ndarray) -> tuple[int, bool]:
    """How many distinct numbers float32 merges with others, and whether its error is large beside their variation.

    Decimals are counted only if the error is large: else it is no larger than that of centered and scaled numbers.

    Args:
        numbers: float64; NaN for missing values.

    Example:
        >>> day = 1.7e12 + 86_400_000 * np.arange(3)  # dates in milliseconds
        >>> lost_in_float32(day), lost_in_float32(1.7e12 + np.arange(3)), lost_in_float32(np.array([0.1, 0.2, 0.7]))
        ((0, True), (2, True), (0, False))
    """
    present = numbers[~np.isnan(numbers)]
    with np.errstate(over="ignore"):
        single = present.astype(np.float32).astype(np.float64)
    if np.array_equal(single, present):
        return 0, False
    errors = np.abs(single - present)
    low, high = np.quantile(present[:: 1 + len(present) // _SAMPLE], [0.25, 0.75])
    is_coarse = _is_coarse(errors, float(np.std(present)))
    if not is_coarse:  # A few outliers may make the deviation large.
        is_coarse = _is_coarse(errors[(present >= low) & (present <= high)], float(high - low))
    if not is_coarse and (present != np.round(present)).any():
        return 0, False
    distinct = np.unique(present)
    with np.errstate(over="ignore"):
        return len(distinct) - len(np.unique(distinct.astype(np.float32))), is_coarse


def _is_coarse(errors: np.ndarray, spread: float) -> bool:
    return bool(errors.max(initial=0.0) > _MAX_ERROR * spread > 0)


def check_float32(numbers: np.ndarray, name: str, source: str) -> int:
    """Checks numbers that a model predicts; returns how many distinct ones float32 merges with others.

    Args:
        numbers: float64; NaN for missing values.
        name: of their column, for messages.
        source: where it is from, for messages.

    Raises:
        DataError: if the error of float32 is large beside their variation, or float32 cannot hold their squares.

    Example:
        >>> check_float32(1.7e12 + np.arange(3.0), "time", "t.csv")
        Traceback (most recent call last):
        ...
        tfaccel.errors.DataError: The numbers in column 'time' of t.csv are around 1.7e+12 and vary by 0.816: float32, \
in which models predict, is too coarse for them. Subtract a constant from the column, such as 1.7e+12.
    """
    present = numbers[~np.isnan(numbers)]
    deviation = float(np.std(present)) if len(present) else 0.0
    if deviation and not _SMALLEST_TARGETS <= deviation <= _LARGEST_TARGETS:
        raise DataError(
            f"The numbers in column {name!r} of {source} vary by {deviation:.3g}. Their squares are summed in float32, "
            f"for which this is too {'small' if deviation < 1 else 'large'}. Divide the column by a constant, such as "
            f"{deviation:.0e}."
        )
    num_merged, is_coarse = lost_in_float32(numbers)
    if is_coarse:
        center = float(np.nanmedian(numbers))
        raise DataError(
            f"The numbers in column {name!r} of {source} are around {center:.3g} and vary by "
            f"{deviation:.3g}: float32, in which models predict, is too coarse for them. Subtract a "
            f"constant from the column, such as {center:.3g}."
        )
    return num_merged
