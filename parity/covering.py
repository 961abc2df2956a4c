"""Covering arrays: few cases in which every valid combination of values of two (or three, ...) axes occurs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Value = tuple[str, Any]  # (axis, value)
Group = frozenset[Value]
Excluded = Callable[[Value, Value], Any]


def valid_groups(axes: Mapping[str, Sequence[Any]], excluded: Excluded, num_axes: int) -> list[Group]:
    """All compatible groups of values of `num_axes` different axes, in a fixed order."""
    groups = []
    for names in itertools.combinations(axes, num_axes):
        for values in itertools.product(*(axes[name] for name in names)):
            group = tuple(zip(names, values, strict=True))
            if not any(excluded(a, b) for a, b in itertools.combinations(group, 2)):
                groups.append(group)
    return [frozenset(group) for group in sorted(groups, key=lambda group: [(axis, repr(x)) for axis, x in group])]


def covering_cases(
    axes: Mapping[str, Sequence[Any]], excluded: Excluded, *, num_axes: int = 2, cheap_first: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Returns cases that cover every valid group of values of `num_axes` axes; deterministic.

    Greedy: each case starts from an uncovered group; every other axis gets the value that covers the most remaining
    groups, and among those the least used one.

    Args:
        axes: the values of each axis.
        excluded: whether two (axis, value) pairs are incompatible.
        num_axes: 2 for pairs, 3 for triples.
        cheap_first: axes whose values are ordered by cost; ties go to the first value.

    Returns:
        One dict per case, from axis to value.

    Raises:
        ValueError: if an axis has no value that is compatible with the others.

    Example:

    >>> cases = covering_cases({"a": (1, 2), "b": (1, 2), "c": (1, 2)}, lambda p, q: False)
    >>> len(cases)
    4
    """
    groups = valid_groups(axes, excluded, num_axes)
    search = _Search(axes, excluded, num_axes, cheap_first, set(groups))
    cases = []
    for group in groups:
        if group in search.left:
            chosen = search.complete(dict(sorted(group)))
            search.take(chosen)
            cases.append({axis: chosen[axis] for axis in axes})
    return cases


@dataclass
class _Search:
    """The state of the greedy search.

    Attributes:
        left: groups that are not covered yet.
        used: number of cases with each value.
    """

    axes: Mapping[str, Sequence[Any]]
    excluded: Excluded
    num_axes: int
    cheap_first: Collection[str]
    left: set[Group]
    used: Counter[Value] = field(default_factory=Counter)

    def complete(self, chosen: dict[str, Any]) -> dict[str, Any]:
        """Adds a value for every other axis to `chosen`, starting with the axes that have the most values."""
        for axis in sorted(self.axes, key=lambda axis: -len(self.axes[axis])):
            if axis in chosen:
                continue
            values = [(axis, x) for x in self.axes[axis]]
            fitting = [value for value in values if not any(self.excluded(value, other) for other in chosen.items())]
            if not fitting:
                raise ValueError(f"No value of {axis!r} is compatible with {chosen}. Relax the exclusions.")
            chosen = {**chosen, axis: max(fitting, key=lambda value: self._gain(value, chosen))[1]}
        return chosen

    def take(self, chosen: dict[str, Any]) -> None:
        """Records a case."""
        self.left -= {frozenset(group) for group in itertools.combinations(chosen.items(), self.num_axes)}
        self.used.update(chosen.items())

    def _gain(self, value: Value, chosen: dict[str, Any]) -> tuple[int, int]:
        others = itertools.combinations(chosen.items(), self.num_axes - 1)
        covered = sum(frozenset([value, *group]) in self.left for group in others)
        return covered, 0 if value[0] in self.cheap_first else -self.used[value]
