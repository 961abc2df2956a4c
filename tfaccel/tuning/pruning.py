"""Pruning rules: stop a trial early by comparing it with the others at the same epoch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

# Fewer other trials are not informative.
MIN_OTHERS = 3
_FACTOR = 3


def prune_cause(rule: str, own: Sequence[float], others: Sequence[Sequence[float]], *, direction: str) -> str | None:
    """The reason to stop a trial now; None if it should continue.

    Args:
        rule: "none", "median" or "halving"; see `SearchOptions`.
        own: the trial's objective after each epoch so far.
        others: the same for the other trials, of any length.
        direction: "max" or "min".

    Example:
        >>> prune_cause("median", [0.2], [[0.5], [0.6], [0.7]], direction="max")
        'At epoch 1 its best was 0.2, below the median 0.6 of 3 other trials.'
        >>> prune_cause("median", [0.65], [[0.5], [0.6], [0.7]], direction="max") is None
        True
    """
    epoch = len(own)
    reached = [values[:epoch] for values in others if len(values) >= epoch]
    if rule == "none" or epoch == 0 or len(reached) < MIN_OTHERS:
        return None
    best = max if direction == "max" else min
    bests, mine = [best(values) for values in reached], best(own)

    def worse(value: float, than: float) -> bool:
        return value < than if direction == "max" else value > than

    side = "below" if direction == "max" else "above"
    if rule == "median":
        median = statistics.median(bests)
        if worse(mine, median):
            than = f"{side} the median {median:.6g} of {len(bests)} other trials"
            return f"At epoch {epoch} its best was {mine:.6g}, {than}."
        return None
    if not is_rung(epoch):
        return None
    place = 1 + sum(worse(mine, other) for other in bests)
    most = max(1, -(-(len(bests) + 1) // _FACTOR))
    if place > most:
        return f"At epoch {epoch} it ranked {place} of {len(bests) + 1} trials; the best {most} continue."
    return None


def is_rung(epoch: int) -> bool:
    """Whether successive halving compares trials after this epoch: 1, 3, 9, 27 ...

    Example:
        >>> [epoch for epoch in range(1, 30) if is_rung(epoch)]
        [1, 3, 9, 27]
    """
    while epoch % _FACTOR == 0:
        epoch //= _FACTOR
    return epoch == 1
