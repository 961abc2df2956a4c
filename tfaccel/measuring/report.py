"""The noun `Report`: all plans that were measured, and the fastest correct one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfaccel.measuring.candidate import Candidate, MeasureOptions
from tfaccel.planning.plan import Plan
from tfaccel.records import SavedRecord
from tfaccel.short_repr import short_repr

FIRST_PLAN, REFERENCE = "first plan", "reference"  # axes of candidates that no move led to
NO_MOVE_LEFT = "No further move is left."
HEADINGS = ("plan", "examples/s", "speed", "spread", "first steps", "memory", "outcome")


@short_repr
@dataclass(frozen=True, kw_only=True)
class Report(SavedRecord):
    """All plans that `find_fastest` measured, and the one that it chose.

    Args:
        workload: the workload's name.
        candidates: in the order in which they were measured.
        chosen: the position of the chosen one.
        gains: axis -> speedup that the move along it gave.
        seconds: how long the choice took.
        hardware: the machine, as JSON.
        versions: package -> version.
        from_cache: whether the measurements are from an earlier call.
        stopped_because: why nothing more was measured.
        complete: whether the search ended by itself; False if it was interrupted and can be continued.
        budget_seconds, max_candidates: the limits of the search.
        left_out: axes that were not tried, since the process could not take their settings any more.
        kept_in: the file that keeps it; None if it is not kept.
        command: what trains with the chosen plan.
    """

    workload: str
    candidates: tuple[Candidate, ...]
    chosen: int
    gains: Mapping[str, float] = field(default_factory=dict)
    seconds: float
    hardware: Mapping[str, Any]
    versions: Mapping[str, str]
    from_cache: bool = False
    stopped_because: str = ""
    complete: bool = True
    budget_seconds: float = 60.0
    max_candidates: int = 12
    left_out: tuple[str, ...] = ()
    kept_in: str | None = None
    command: str = ""

    def covers(self, options: MeasureOptions, left_out: Collection[str]) -> bool:
        """Whether a search with these options and without these axes would find nothing more."""
        if not self.complete or {*self.left_out} - {*left_out}:
            return False
        within = options.budget_seconds <= self.budget_seconds and options.max_candidates <= self.max_candidates
        return within or self.stopped_because == NO_MOVE_LEFT

    @property
    def plan(self) -> Plan:
        """The fastest correct plan."""
        return self.candidates[self.chosen].plan

    @property
    def speedup(self) -> float:
        """The speed of the chosen plan divided by that of the rules' first plan; 1 if one of them is unknown."""
        first = next((one for one in self.candidates if one.axis == FIRST_PLAN), None)
        rates = [one.examples_per_second if one else None for one in (self.candidates[self.chosen], first)]
        return rates[0] / rates[1] if rates[0] and rates[1] else 1.0

    @property
    def step_operations(self) -> int | None:
        """Floating-point operations of an optimizer step's matrix products and convolutions; None if unknown."""
        return next((one.step_operations for one in self.candidates if one.step_operations is not None), None)

    def rows(self) -> list[list[str]]:
        """A table with a row for each candidate; `HEADINGS` are its columns."""
        return [self._row(number, candidate) for number, candidate in enumerate(self.candidates)]

    def _row(self, number: int, candidate: Candidate) -> list[str]:
        rate = candidate.examples_per_second
        outcome = candidate.failure or candidate.rejection or ("chosen" if number == self.chosen else "")
        memory = candidate.peak_bytes
        return [
            described(candidate, self.candidates[0].plan),
            "" if rate is None else f"{rate:,.0f}",
            "" if candidate.speedup is None else f"{candidate.speedup:.2f}",
            "" if rate is None else f"{100 * candidate.spread:.0f} %",
            "" if candidate.first_step_seconds is None else f"{candidate.first_step_seconds:.1f} s",
            "" if memory is None else f"{memory / 2**20:,.0f} MiB",
            outcome,
        ]


def described(candidate: Candidate, first: Plan) -> str:
    """A candidate by what differs from the first one.

    Example:
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> xla = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32, jit_compile=True)
        >>> described(Candidate(plan=xla, axis="XLA"), plan)
        'jit_compile=True'
    """
    now, then = candidate.plan.to_json(), first.to_json()
    changes = [f"{name}={_text(now[name])}" for name in now if name != "reasons" and now[name] != then[name]]
    return ", ".join(changes) or candidate.axis


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
