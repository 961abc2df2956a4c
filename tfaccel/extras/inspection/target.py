"""Columns that reveal the target: copies, functions and near-copies of it."""

from __future__ import annotations

from collections import Counter

import numpy as np
from scipy import stats

from tfaccel.extras.inspection.findings import Finding

_MIN_ROWS = 20  # fewer rows are not checked
_EQUAL = 0.98  # fraction of rows in which a copy must agree with the target
_MIN_ROWS_PER_VALUE = 5  # of a column that could determine the target
_LEFT_OVER = 0.1  # largest fraction of the errors of always predicting the most frequent class
_MONOTONE = 0.9995  # rank correlation
_SMOOTH = 0.002  # fraction of the target's variance between neighbors in the column
_APART = 0.05  # spread within classes, as a fraction of the distance between the nearest two
_ADVICE = "Would it be known before the target is? If not, leave it out: --column_kinds={}=ignored."

Texts = list[str | None]


def tells_the_target(
    name: str, column: tuple[Texts, np.ndarray | None], target: tuple[Texts, np.ndarray | None]
) -> list[Finding]:
    """A finding if a column reveals the target in the rows that have both; else an empty list.

    Args:
        name: the name of the column.
        column: its values as texts, and as numbers (NaN for missing ones) if it is numeric.
        target: those of the target, with numbers for regression and None for classification.

    Example:
        >>> kinds = ["cat", "dog"] * 20
        >>> codes = [{"cat": "1", "dog": "2"}[kind] for kind in kinds]
        >>> tells_the_target("code", (codes, None), (kinds, None))[0].text
        'each of its values goes with one value of the target, in 40 of 40 rows'
    """
    rows = [row for row, (a, b) in enumerate(zip(column[0], target[0], strict=True)) if a is not None and b is not None]
    texts, goals = [column[0][row] for row in rows], [target[0][row] for row in rows]
    if len(rows) < _MIN_ROWS or len(set(goals)) < 2:
        return []
    numbers, values = (None if one is None else one[rows] for one in (column[1], target[1]))
    text = _equal(texts, goals) or _function_of_values(texts, goals, values)
    if not text and numbers is not None:
        usable = np.isfinite(numbers) if values is None else np.isfinite(numbers) & np.isfinite(values)
        if usable.sum() >= _MIN_ROWS and np.ptp(numbers[usable]) > 0:
            if values is None:
                text = _apart(numbers[usable], np.array(goals, dtype=object)[usable])
            else:
                text = _smooth(numbers[usable], values[usable])
    return [Finding("tells the target", name, text, _ADVICE.format(name))] if text else []


def _equal(texts: Texts, goals: Texts) -> str:
    num_equal = sum(a == b for a, b in zip(texts, goals, strict=True))
    if num_equal < _EQUAL * len(texts) or Counter(goals).most_common(1)[0][1] >= num_equal:
        return ""
    return f"it is equal to the target in {num_equal} of {len(texts)} rows"


def _function_of_values(texts: Texts, goals: Texts, values: np.ndarray | None) -> str:
    """Whether a column with few distinct values determines the target."""
    groups: dict[str | None, list[int]] = {}
    for row, text in enumerate(texts):
        groups.setdefault(text, []).append(row)
    if len(groups) < 2 or len(texts) < _MIN_ROWS_PER_VALUE * len(groups):
        return ""
    if values is not None and len(set(goals)) * _MIN_ROWS_PER_VALUE > len(goals):
        inside = sum(float(((values[rows] - values[rows].mean()) ** 2).sum()) for rows in groups.values())
        whole = float(((values - values.mean()) ** 2).sum())
        return "its values leave almost nothing of the target open" if inside < _SMOOTH * whole else ""
    right = sum(Counter(goals[row] for row in rows).most_common(1)[0][1] for rows in groups.values())
    guessed = Counter(goals).most_common(1)[0][1]
    errors, errors_without = len(goals) - right, len(goals) - guessed
    if errors > (1 - _EQUAL) * len(goals) or errors > _LEFT_OVER * errors_without:
        return ""
    return f"each of its values goes with one value of the target, in {right} of {len(goals)} rows"


def _smooth(numbers: np.ndarray, values: np.ndarray) -> str:
    """Whether a regression target is a function of a column: neighbors in the column have neighboring targets."""
    if np.ptp(values) == 0:
        return ""
    rank = float(stats.spearmanr(numbers, values).statistic)
    if abs(rank) >= _MONOTONE:
        return f"the target rises or falls with it (rank correlation {rank:.4f})"
    ordered = values[np.lexsort((values, numbers))]
    steps = float((np.diff(ordered) ** 2).mean()) / (2 * float(values.var()))
    return "the target is a smooth function of it, almost without a rest" if steps < _SMOOTH else ""


def _apart(numbers: np.ndarray, goals: np.ndarray) -> str:
    """Whether the numbers of each class are close together and far from those of other classes: a noisy label."""
    of_class = [numbers[goals == name] for name in sorted(set(goals.tolist()))]
    centers = np.sort([float(np.median(group)) for group in of_class])
    distance = float(np.diff(centers).min()) if len(centers) > 1 else 0.0
    spread = max(float(np.std(group)) for group in of_class)
    return "its numbers are the classes with a little noise" if distance > 0 and spread < _APART * distance else ""
