"""Numbers far from all others in their column, such as 9999 for an unknown value."""

from __future__ import annotations

import numpy as np

from tfaccel.extras.inspection.findings import Finding

_MIN_ROWS = 20
_MAX_OUTLIERS = 0.05  # fraction of the rows
_GAP, _GAP_OF_NINES = 3.0, 0.5  # between outliers and the others, as multiples of the range of the others
_NINES = frozenset(sign * (10**digits - 1) for digits in range(2, 10) for sign in (1, -1))


def outliers(name: str, numbers: np.ndarray) -> list[Finding]:
    """The values at one or both ends of a column that a wide gap separates from all others.

    Args:
        name: the name of the column.
        numbers: its values, NaN for missing ones.

    Example:
        >>> [finding.text for finding in outliers("age", np.array([*range(20, 60), 9999.0]))]
        ['1 of 41 values stands apart: 9999 in row 41; the others are from 20 to 59']
    """
    rows = np.flatnonzero(np.isfinite(numbers))
    order = rows[np.argsort(numbers[rows], kind="stable")]
    values = numbers[order]
    low = _number_below(values)
    high = len(values) - _number_below(-values[::-1])
    apart = np.sort(np.concatenate([order[:low], order[high:]]))
    if len(values) < _MIN_ROWS or len(apart) == 0:
        return []
    shown = ", ".join(f"{numbers[row]:.15g} in row {row + 1}" for row in apart)
    verb = "stands" if len(apart) == 1 else "stand"
    text = f"{len(apart)} of {len(values)} values {verb} apart: {shown}; the others are from {values[low]:.6g} to "
    return [Finding("outlier", name, f"{text}{values[high - 1]:.6g}", "Fix it; empty the field if no value was known.")]


def _number_below(values: np.ndarray) -> int:
    """The number of lowest values, of sorted ones, that a gap separates from the others."""
    for count in range(int(_MAX_OUTLIERS * len(values)) + 1, 0, -1):
        others = values[count:]
        if len(np.unique(others[: len(others) - int(_MAX_OUTLIERS * len(values)) or None])) < 3:
            continue
        # The other end may have outliers too, which do not count for the range.
        spread = float(others[-1 - min(int(_MAX_OUTLIERS * len(values)), len(others) - 2)] - others[0])
        gap = float(others[0] - values[count - 1])
        wanted = _GAP_OF_NINES if {abs(value) for value in values[:count].tolist()} <= _NINES else _GAP
        if spread > 0 and gap > wanted * spread:
            return count
    return 0
