"""What each move of a search gained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfaccel.planning.moves import MEASURED, get_fields
from tfaccel.planning.plan import Plan, plan_field_names


@dataclass(frozen=True)
class _Win:
    """A move to a faster plan.

    Args:
        axis: the move's.
        speedup: the speed divided by that of the plan before.
        changes: field -> new value.
    """

    axis: str
    speedup: float
    changes: Mapping[str, Any]

    def kept(self, plan: Plan) -> dict[str, Any]:
        """The changes that a later plan still has."""
        return {name: value for name, value in self.changes.items() if getattr(plan, name) == value}


class Gains:
    """The moves that won, in order.

    Example:
        >>> plain = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)
        >>> compiled = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, jit_compile=True)
        >>> gains = Gains()
        >>> gains.won("XLA", 1.5, before=plain, after=compiled)
        >>> gains.by_axis(compiled), gains.by_axis(plain)
        ({'XLA': 1.5}, {})
    """

    def __init__(self) -> None:
        self._wins: list[_Win] = []

    def won(self, axis: str, speedup: float, *, before: Plan, after: Plan) -> None:
        """Notes a move. It takes over the gains of earlier ones whose changes it undoes."""
        undone = math.prod(one.speedup for one in self._wins if not one.kept(after))
        names = [name for name in plan_field_names() if getattr(after, name) != getattr(before, name)]
        self._wins = [one for one in self._wins if one.kept(after)]
        self._wins.append(_Win(axis, speedup * undone, {name: getattr(after, name) for name in names}))

    def take_over(self, gains: Mapping[str, float], plan: Plan) -> None:
        """Takes over what an earlier search found on its way to a plan, in place of all but the rules' gain."""
        self._wins = [one for one in self._wins if not get_fields(one.axis)]
        for axis, gain in gains.items():
            if names := get_fields(axis):
                self._wins.append(_Win(axis, gain, {name: getattr(plan, name) for name in names}))

    def by_axis(self, plan: Plan) -> dict[str, float]:
        """Axis -> the speedup by moves along it that a plan still has."""
        found: dict[str, float] = {}
        for win in self._wins:
            if win.kept(plan):
                found[win.axis] = found.get(win.axis, 1.0) * win.speedup
        return found

    def reasons(self, plan: Plan) -> dict[str, str]:
        """Field -> the reason for its value, for those that moves changed."""
        found: dict[str, str] = {}
        for axis, gain in self.by_axis(plan).items():
            for win in self._wins:
                if win.axis == axis and get_fields(axis):
                    found |= dict.fromkeys(win.kept(plan), f"{MEASURED}: {axis}, {gain:.2f} times the speed.")
        return found
