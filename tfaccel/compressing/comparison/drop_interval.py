"""The noun `DropInterval`: a confidence interval of the drop of a metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from scipy import special

from tfaccel.short_repr import short_repr

_MAX_EXAMPLES = 10**9
_HALVINGS = 60
# A group with a smaller relative contribution to the drop counts as unchanged: float32 has seven digits.
_NO_CHANGE = 1e-5


@short_repr
@dataclass(frozen=True, kw_only=True)
class DropInterval:
    """Confidence interval of the drop of a metric on examples from the same distribution.

    The float model and the variant are evaluated on the same examples (a paired comparison).

    Attributes:
        low: lower bound, with the requested confidence.
        high: upper bound, with the same confidence.
        num_examples: number of held-out examples.
        num_needed: how many examples with the same outcome would bring `high` below the limit; None if none would.

    Example:
        >>> paired_interval(0, 0, 32, confidence=0.95, limit=0.01)  # doctest: +ELLIPSIS
        DropInterval(low=-0.0893..., high=0.0893..., num_examples=32, num_needed=299)
    """

    low: float
    high: float
    num_examples: int
    num_needed: int | None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; an infinite bound becomes None."""
        return {name: value if value is None or math.isfinite(value) else None for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The interval that `to_json` gave."""
        low, high = data["low"], data["high"]
        bounds = {"low": -math.inf if low is None else low, "high": math.inf if high is None else high}
        return cls(**{**data, **bounds})


def paired_interval(worse: int, better: int, num_examples: int, *, confidence: float, limit: float) -> DropInterval:
    """The interval of a drop in accuracy.

    The bounds are Tango's score interval for the difference of paired proportions, and at least as wide as the
    exact Clopper-Pearson interval of the predictions that changed.

    Args:
        worse: number of examples that the float model predicts correctly and the variant does not.
        better: the other way round.
        num_examples: number of all examples.
        confidence: of each bound.
        limit: the largest allowed drop.

    Reference: T. Tango, Equivalence test and confidence interval for the difference in proportions for the
    paired-sample design, Statistics in Medicine 17 (1998).
    """
    high = _highest_difference(worse, better, num_examples, confidence)

    def is_enough(count: float) -> bool:
        share = count / num_examples
        return _highest_difference(worse * share, better * share, count, confidence) <= limit

    return DropInterval(
        low=-_highest_difference(better, worse, num_examples, confidence),
        high=high,
        num_examples=num_examples,
        num_needed=_least_count(is_enough) if (worse - better) / num_examples < limit else None,
    )


def jackknife_interval(
    drop: float,
    without_groups: Sequence[float],
    num_examples: int,
    *,
    confidence: float,
    limit: float,
    counts_right_answers: bool = False,
) -> DropInterval:
    r"""The interval of a drop in any smooth metric, by the jackknife over groups of examples.

    With the drop $d$ of all examples and $d_g$ of all but group $g$ of $G$, the values $G d - (G - 1) d_g$ are treated
    as independent; Student's t distribution gives the bounds.

    Args:
        drop: the drop on all examples.
        without_groups: the drop without each group of examples; group sizes differ by at most one.
        num_examples: number of all examples.
        confidence: of each bound.
        limit: the largest allowed drop.
        counts_right_answers: whether each example counts as right or wrong; the bounds then allow for changes too rare
            to occur among these examples.

    Example:
        >>> found = jackknife_interval(0.0, [0.01, -0.01, 0.02, -0.02], 40, confidence=0.95, limit=0.1)
        >>> round(found.high, 3), found.num_needed
        (0.064, 17)
    """
    count = len(without_groups)
    half, unseen = math.inf, 0.0
    if count > 1:
        values = count * drop - (count - 1) * np.asarray(without_groups, np.float64)
        half = float(special.stdtrit(count - 1, confidence) * values.std(ddof=1) / math.sqrt(count))
        if counts_right_answers and np.mean(np.abs(values) < _NO_CHANGE) >= 0.5:
            unseen = _of_unseen(num_examples, confidence)
    room = limit - drop
    needed = None
    if room > 0 and math.isfinite(half):
        needed = math.ceil(num_examples * (half / room) ** 2)
        if unseen:
            needed = max(needed, _least_count(lambda count: _of_unseen(count, confidence) <= room) or 0)
    half = max(half, unseen)
    return DropInterval(low=drop - half, high=drop + half, num_examples=num_examples, num_needed=needed)


def _of_unseen(num_examples: float, confidence: float) -> float:
    """The highest rate of an event that did not occur in this many examples."""
    return float(-math.expm1(math.log1p(-confidence) / num_examples))


def _highest_difference(worse: float, better: float, num_examples: float, confidence: float) -> float:
    """The highest p(worse) - p(better) consistent with these counts."""
    quantile = float(special.ndtri(confidence))
    low, high = (worse - better) / num_examples, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _score(middle, worse, better, num_examples) < -quantile:
            high = middle
        else:
            low = middle
    exact = 1.0 if worse >= num_examples else float(special.betaincinv(worse + 1, num_examples - worse, confidence))
    return max(high, exact - better / num_examples)


def _score(difference: float, worse: float, better: float, num_examples: float) -> float:
    """Tango's score statistic of a difference, with the maximum-likelihood rate of better answers under it."""
    a = 2 * num_examples
    b = -worse - better + (2 * num_examples - worse + better) * difference
    c = -better * difference * (1 - difference)
    rate = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    variance = num_examples * (2 * rate + difference * (1 - difference))
    distance = worse - better - num_examples * difference
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance) if distance else 0.0


def _least_count(is_enough: Callable[[float], bool]) -> int | None:
    """The smallest sufficient number of examples; None if none is."""
    high = 1
    while not is_enough(high):
        high *= 2
        if high > _MAX_EXAMPLES:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
