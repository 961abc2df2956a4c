"""A small set of cases in which every valid pair of values of two axes occurs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Value = tuple[str, Any]  # (axis, value)
Excluded = Callable[[Value, Value], Any]


def valid_pairs(axes: Mapping[str, Sequence[Any]], excluded: Excluded) -> set[frozenset[Value]]:
    """All pairs of values of two different axes that may occur together."""
    return {
        frozenset([(a, x), (b, y)])
        for a, b in itertools.combinations(axes, 2)
        for x, y in itertools.product(axes[a], axes[b])
        if not excluded((a, x), (b, y))
    }


def pairwise(
    axes: Mapping[str, Sequence[Any]], excluded: Excluded, *, cheap_first: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Cases that cover every valid pair; the same ones in every run.

    Greedy: each case starts from a pair that is not covered yet; every further axis takes the value that covers most
    pairs that are left, and among those the value that was used least.

    Args:
        axes: the values of each axis.
        excluded: tells of two (axis, value) whether they must not be in one case.
        cheap_first: axes whose values become dearer from first to last; among values that cover as many pairs they take
            the first.

    Returns:
        One dict a case, from axis to value.

    Raises:
        ValueError: if an axis has no value that may stand beside the others.

    Example:

    >>> cases = pairwise({"a": (1, 2), "b": (1, 2), "c": (1, 2)}, lambda p, q: False)
    >>> len(cases)
    4
    """
    pairs = sorted(valid_pairs(axes, excluded), key=lambda pair: sorted((a, repr(x)) for a, x in pair))
    search = _Search(axes, excluded, cheap_first, set(pairs))
    cases = []
    for pair in pairs:
        if pair in search.left:
            chosen = search.complete(dict(sorted(pair)))
            search.take(chosen)
            cases.append({axis: chosen[axis] for axis in axes})
    return cases


@dataclass
class _Search:
    """What is covered so far.

    Attributes:
        left: pairs that no case has yet.
        used: how many cases have each value.
    """

    axes: Mapping[str, Sequence[Any]]
    excluded: Excluded
    cheap_first: Collection[str]
    left: set[frozenset[Value]]
    used: Counter[Value] = field(default_factory=Counter)

    def complete(self, chosen: dict[str, Any]) -> dict[str, Any]:
        """`chosen` with a value for every other axis, those with the most values first."""
        for axis in sorted(self.axes, key=lambda axis: -len(self.axes[axis])):
            if axis in chosen:
                continue
            values = [(axis, x) for x in self.axes[axis]]
            fitting = [value for value in values if not any(self.excluded(value, other) for other in chosen.items())]
            if not fitting:
                raise ValueError(f"No value of {axis!r} may stand beside {chosen}. Loosen the exclusions.")
            chosen = {**chosen, axis: max(fitting, key=lambda value: self._gain(value, chosen))[1]}
        return chosen

    def take(self, chosen: dict[str, Any]) -> None:
        """Notes a case."""
        self.left -= {frozenset(two) for two in itertools.combinations(chosen.items(), 2)}
        self.used.update(chosen.items())

    def _gain(self, value: Value, chosen: dict[str, Any]) -> tuple[int, int]:
        covered = sum(frozenset([value, other]) in self.left for other in chosen.items())
        return covered, 0 if value[0] in self.cheap_first else -self.used[value]
