"""The noun `DropInterval`: between which bounds the drop of a metric lies, given how few examples showed it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from scipy import special

_MOST_EXAMPLES = 10**9
_HALVINGS = 60
# A group whose share of the drop is smaller than this, of the metric's size, saw no change: float32 has seven digits.
_NO_CHANGE = 1e-5


@dataclass(frozen=True, kw_only=True)
class DropInterval:
    """Between which bounds the drop of a metric lies on examples like those that showed it.

    Float model and smaller form were judged on the same examples, so that only what differs between them counts.

    Attributes:
        low: the drop is above this, with the confidence asked for.
        high: the drop is below this, with the same confidence.
        num_examples: that showed it.
        num_needed: how many examples that show the same would bring `high` down to the limit; None if no number would.

    Example:
        >>> paired_interval(0, 0, 32, confidence=0.95, limit=0.01)
        DropInterval(low=-0.0894..., high=0.0894..., num_examples=32, num_needed=299)
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
    """The interval of a drop in a fraction of right answers.

    The bounds are Tango's score interval for the difference of paired proportions, and not narrower than the exact
    interval of Clopper and Pearson for the answers that changed.

    Args:
        worse: examples that the float model answers rightly and the other form does not.
        better: the other way round.
        num_examples: all of them.
        confidence: with which each bound holds.
        limit: the largest drop that is allowed.

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

    With the drop $d$ of all examples and $d_g$ of all but group $g$ of $G$, the values $G d - (G - 1) d_g$ are taken
    for independent; Student's distribution gives the bounds.

    Args:
        drop: of all examples.
        without_groups: of all but each group of examples, in turn; groups are equally large up to one example.
        num_examples: all of them.
        confidence: with which each bound holds.
        limit: the largest drop that is allowed.
        counts_right_answers: whether an example counts as right or not, up to 1 each: then a change that no example
            showed may still come, once in as many examples as the confidence allows.

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
    """How often something may happen that did not happen in so many examples."""
    return float(-math.expm1(math.log1p(-confidence) / num_examples))


def _highest_difference(worse: float, better: float, num_examples: float, confidence: float) -> float:
    """The highest p(worse) - p(better) that such counts leave possible."""
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
    """Tango's statistic for a difference, at the most likely rate of better answers under it."""
    a = 2 * num_examples
    b = -worse - better + (2 * num_examples - worse + better) * difference
    c = -better * difference * (1 - difference)
    rate = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    variance = num_examples * (2 * rate + difference * (1 - difference))
    distance = worse - better - num_examples * difference
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance) if distance else 0.0


def _least_count(is_enough: Callable[[float], bool]) -> int | None:
    """The least number of examples that is enough; None if none is."""
    high = 1
    while not is_enough(high):
        high *= 2
        if high > _MOST_EXAMPLES:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
