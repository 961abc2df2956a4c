"""An exhaustive sweep of the space that `find_fastest` searches: how good a plan can get."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfaccel.errors import TfaccelError
from tfaccel.hardware.hardware import Hardware
from tfaccel.measuring.candidate_child import CandidateChild, CandidateFailed, CandidateServers
from tfaccel.measuring.duel import duel, first_losses, what_is_wrong
from tfaccel.measuring.report import REFERENCE, Candidate, described
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.moves import Move, moves
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_environment import installed_allocators
from tfaccel.planning.workload import Workload

# Axes that are combined with each other: the alternatives of each, of which a plan takes one or none.
COMBINED: tuple[tuple[str, ...], ...] = (("precision", "Grappler"), ("oneDNN",), ("XLA", "kernels"), ("threads",))
_PLAIN: dict[str, Any] = {
    "dtype_policy": "float32",
    "jit_compile": False,
    "fused_kernels": False,
    "grappler_bfloat16": False,
    "xla_auto_clustering": False,
}


@dataclass(frozen=True, kw_only=True)
class SweepSpace:
    """The plans of a sweep.

    Attributes:
        reference: float32, without XLA and fused kernels.
        combined: all combinations of precision, oneDNN where it is off by default, compilation and threads that do not
            contradict themselves.
        single: moves along the other axes, each to be applied to the best plan so far.
    """

    reference: Plan
    combined: tuple[Plan, ...]
    single: tuple[Move, ...]


def sweep_space(hardware: Hardware, workload: Workload) -> SweepSpace:
    """The plans that `find_fastest` could reach on this machine, as far as a sweep can try them all."""
    found = moves(hardware, workload, {}, allocators=installed_allocators())
    first = default_plan(hardware, workload)
    reference = replace(first, **_PLAIN)
    found += [Move(axis, changes) for axis, changes in _of_first(first, reference)]
    plans = dict.fromkeys(_combinations(reference, found))
    plans.pop(reference)
    single = tuple(move for move in found if not any(_is_combined(move, axes) for axes in COMBINED))
    return SweepSpace(reference=reference, combined=tuple(plans), single=single)


def _is_combined(move: Move, axes: tuple[str, ...]) -> bool:
    """Whether a move belongs to some axes of `COMBINED`; not one that turns off oneDNN, which rarely pays."""
    return move.axis in axes and ("onednn", False) not in move.changes


def _of_first(first: Plan, reference: Plan) -> Iterator[tuple[str, tuple[tuple[str, Any], ...]]]:
    """What the rules' plan has that the reference lacks, as moves: the moves from it lead away from that."""
    for axis, name in (("precision", "dtype_policy"), ("XLA", "jit_compile"), ("kernels", "fused_kernels")):
        if getattr(first, name) != getattr(reference, name):
            yield axis, ((name, getattr(first, name)),)


def _combinations(reference: Plan, found: Sequence[Move]) -> Iterator[Plan]:
    options = [[(), *(move.changes for move in found if _is_combined(move, axes))] for axes in COMBINED]
    for parts in itertools.product(*options):
        changes = tuple(dict(change for part in parts for change in part).items())
        plan = Move("combined", changes).applied_to(reference)
        yield reference if not changes else plan or reference


class PlanSweep:
    """Measures all plans of a space, each in a process of its own, in turn with the reference.

    Args:
        space: the plans.
        servers, task: as for `CandidateChild`.
        limit_seconds: time limit for building a model, and for each window.
        progress: called with a line before each plan.
    """

    def __init__(
        self,
        space: SweepSpace,
        servers: CandidateServers,
        task: dict[str, Any],
        *,
        limit_seconds: float = 300.0,
        progress: Callable[[str], None],
    ) -> None:
        self._space, self._servers, self._task = space, servers, task
        self._limit_seconds, self._progress = limit_seconds, progress
        self._done: dict[Plan, Candidate] = {}

    def run(self, *, max_plans: int | None = None) -> tuple[Candidate, ...]:
        """The plans with their speed relative to the reference, which is the first; at most so many besides it.

        Raises:
            TfaccelError: if the reference cannot be measured.
        """
        reference = self._child(self._space.reference, REFERENCE)
        try:
            self._losses = first_losses(reference, None)
            for number, plan in enumerate(self._space.combined[:max_plans], 1):
                self._measure(reference, plan, f"{number} of {len(self._space.combined[:max_plans])}")
            for number, move in enumerate(self._space.single[:max_plans], 1):
                changed = move.applied_to(self._best())
                if changed is not None and changed not in self._done:
                    self._measure(
                        reference, changed, f"single change {number} of {len(self._space.single[:max_plans])}"
                    )
        except CandidateFailed as error:
            raise TfaccelError(f"The reference of the sweep could not be measured: {error}") from error
        finally:
            reference.end()
        return replace(reference.candidate, speedup=1.0), *self._done.values()

    def _best(self) -> Plan:
        plans = [self._space.reference, *self._done]
        return max(plans, key=lambda plan: speed(self._done[plan]) if plan in self._done else 1.0)

    def _child(self, plan: Plan, axis: str) -> CandidateChild:
        return CandidateChild(self._servers.of(plan), self._task, plan, axis, limit_seconds=self._limit_seconds)

    def _measure(self, reference: CandidateChild, plan: Plan, number: str) -> None:
        axis = described(Candidate(plan=plan, axis=""), self._space.reference)
        self._progress(f"sweep, {number}: {axis}")
        child = self._child(plan, "sweep")
        child.candidate = replace(child.candidate, axis=axis)
        speedup = None
        try:
            losses = first_losses(child, self._losses)
        except CandidateFailed as error:
            self._done[plan] = child.fail(str(error))
            return
        wrong = what_is_wrong(child, losses, reference=self._space.reference, reference_losses=self._losses)
        if not wrong:
            try:
                speedup = duel(reference, child, deadline=float("inf")).speedup
            except CandidateFailed as error:
                self._done[plan] = child.fail(str(error))
                return
        child.end()
        self._done[plan] = replace(child.candidate, rejection=wrong, speedup=speedup)


def speed(candidate: Candidate) -> float:
    """Its speed relative to the reference; 0 for a plan that failed or was rejected."""
    return 0.0 if candidate.failure or candidate.rejection else candidate.speedup or 0.0
