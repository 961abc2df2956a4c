"""The limits of a search: how many plans, how long, and how much memory each of them may take."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Iterable
from typing import Any

from tfaccel.errors import PlanError, TfaccelError
from tfaccel.hardware.cpu import free_memory_bytes
from tfaccel.hardware.hardware import Hardware
from tfaccel.hardware.machine import Machine
from tfaccel.measuring.candidate_child import CandidateFailed, CandidateServers
from tfaccel.measuring.estimate_memory import estimated_memory
from tfaccel.measuring.memory_estimate import MemoryEstimate, mebibytes
from tfaccel.measuring.report import FIRST_SECONDS, TAUGHT_SECONDS, Candidate, MeasureOptions
from tfaccel.planning.moves import Move, axes_of, both_at_once
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_environment import get_environment

_IN_CHUNKS = Move("logits", (("logit_chunks", 16),))
_RECOMPUTED = Move("rematerialization", (("rematerialization", True),))
_LARGE_VOCABULARY = 4096
_USABLE = 0.9  # of the free memory, so that the OOM killer never strikes, perhaps at another process
# A plan that XLA compiles may take so many times as long as the others before; where it finds clusters by itself, which
# may be many, as in recurrent layers, longer still. A plan with micro-batches is first checked for what they change.
_COMPILES_LONGER = 1.5
_CLUSTERS_LONGER = 4.0
_SPLITS_LONGER = 2.0
_LEAST_PLANS = 4  # that the time should allow, if each takes as long as the longest so far
_END_SECONDS = 1.5  # to end the processes, and to keep the report


class SearchLimits:
    """The limits of a search that begins now.

    Args:
        options: the budget, the number of plans, and the time limit of a single one.
        is_taught: whether earlier searches on this machine show which moves pay.

    Attributes:
        times: how long the plans took; the search notes it.
        is_taught: whether what earlier searches showed holds here too; the search notes it.

    Example:
        >>> limits = SearchLimits(MeasureOptions(budget_seconds=20, limit_seconds=120))
        >>> limits.of_one_plan
        120.0
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> limits.times.note(plan, 3.0, 2.0)
        >>> 15 < limits.of_one_plan <= 20
        True
    """

    def __init__(self, options: MeasureOptions, *, is_taught: bool = False) -> None:
        self.times = PlanTimes()
        self._began = time.monotonic()
        self._options, self.is_taught = options, is_taught

    @property
    def seconds(self) -> float:
        """The time since the search began."""
        return time.monotonic() - self._began

    @property
    def budget_seconds(self) -> float:
        """How long the search may take: unless that is given, long enough for two plans like the longest one."""
        if self._options.budget_seconds is not None:
            return self._options.budget_seconds
        least = self.times.start_seconds + 2 * self.times.longest + _END_SECONDS
        return max(TAUGHT_SECONDS if self.is_taught else FIRST_SECONDS, least)

    @property
    def deadline(self) -> float:
        """The end of the budget, by `time.monotonic`."""
        return self._began + self.budget_seconds

    @property
    def of_one_plan(self) -> float:
        """The time limit of the next plan, in seconds: one that hangs ends with the budget, if others were measured."""
        if not self.times.longest:
            return float(self._options.limit_seconds)
        left = self.deadline - time.monotonic()
        return min(self._options.limit_seconds, max(left, 2 * self.times.longest))

    def allows_two(self, plan: Plan, *, duel_seconds: float, is_new: bool = False) -> bool:
        """Whether there is time for two further plans, if the second takes as long as this one, and for their duels."""
        expected = self.times.expected(plan, is_new=is_new) + self.times.expected(plan) + 2 * duel_seconds
        return self.seconds + expected <= self.budget_seconds

    def why_not(self, plan: Plan, candidates: Collection[Candidate], **state: bool) -> str:
        """Why a further plan may not be measured; empty if it may.

        Args:
            plan: the plan.
            candidates: those so far.
            **state: see `PlanTimes.expected`.

        Raises:
            PlanError: if time is up, and all that it allowed was one plan.
        """
        options = self._options
        measured = [one for one in candidates if one.windows or one.failure or one.build_seconds]
        if len(measured) >= options.max_candidates:
            count = "One plan was" if len(measured) == 1 else f"{len(measured)} plans were"
            return f"{count} measured (max_candidates={options.max_candidates})."
        budget = self.budget_seconds
        has_time = self.seconds + self.times.expected(plan, **state) <= budget
        if has_time or (len(measured) == 1 and options.budget_seconds is None):
            return ""
        if len(measured) == 1:
            start, longest = self.times.start_seconds, self.times.longest
            least = math.ceil(start + _LEAST_PLANS * longest)
            raise PlanError(
                f"budget_seconds={budget:g} is too small to compare plans: to start and warm up the first one took "
                f"{start + longest:.1f} seconds. Use at least {least}."
            )
        return f"The time was spent (budget_seconds={budget:g})."


class SearchMemory:
    """What a search knows of memory.

    Args:
        servers, task: what processes of the workload need.
        hardware: the machine.
        limit_seconds: time limit of an estimate.
    """

    def __init__(
        self, servers: CandidateServers, task: dict[str, Any], hardware: Hardware, *, limit_seconds: float
    ) -> None:
        self._servers, self._task, self._hardware = servers, task, hardware
        self._limit_seconds = limit_seconds
        self._estimates: dict[bool, MemoryEstimate] = {}
        self._short: set[Plan] = set()
        self._has_many_logits = False

    def limit_bytes(self, plan: Plan) -> int | None:
        """What a process that starts now may take; None on GPUs and TPUs, where TensorFlow says when it is spent."""
        if not plan.devices[0].startswith("CPU"):
            return None
        free = free_memory_bytes(Machine.here())
        return None if free is None else int(_USABLE * free)

    def note(self, plan: Plan, error: CandidateFailed) -> None:
        """Notes that a plan failed."""
        if error.kind == "memory":
            self._short.add(plan)
            self._has_many_logits = error.child.built.get("vocabulary_size", 0) >= _LARGE_VOCABULARY

    def remedies(self, plan: Plan, fixed: Collection[str]) -> list[Move]:
        """Moves from a plan that ran out of memory to plans that need less; the one that costs least time first.

        Args:
            plan: any plan; there is none if it did not run out of memory.
            fixed: plan fields that stay as they are.
        """
        if plan not in self._short:
            return []
        found = [_IN_CHUNKS, _RECOMPUTED] if self._has_many_logits and plan.logit_chunks == 1 else [_RECOMPUTED]
        found = [one for one in found if one.applied_to(plan) and one.changes[0][0] not in fixed]
        return [*found, both_at_once(*found)] if len(found) == 2 else found

    def why_not(self, plan: Plan, known: Iterable[Plan]) -> str:
        """Why a plan with a larger batch than any known one would run out of memory, by the estimate; empty if not."""
        size = plan.micro_batch_size
        if size <= max(one.micro_batch_size for one in known):
            return ""
        if plan.rematerialization not in self._estimates:
            try:
                found = estimated_memory(
                    self._servers, self._task, plan, self._hardware, limit_seconds=self._limit_seconds
                )
            except TfaccelError:  # then it is measured
                return ""
            self._estimates[plan.rematerialization] = found
        memory = self._estimates[plan.rematerialization]
        if memory.fits(size) is not False:
            return ""
        needed, usable = memory.total_bytes(size), memory.usable_bytes or 0
        return f"It would need an estimated {mebibytes(needed)} of {mebibytes(usable)}."


def saves_memory(move: Move) -> bool:
    """Whether a move is one of those after a plan has run out of memory."""
    return {*axes_of(move.axis)} <= {_IN_CHUNKS.axis, _RECOMPUTED.axis}


def compiles_long(plan: Plan) -> bool:
    """Whether XLA compiles the plan's step, or parts of it."""
    return plan.jit_compile or plan.xla_auto_clustering


class PlanTimes:
    """The seconds that plans took: to be built with their first step, and then to be checked and measured.

    The time until a new environment has loaded TensorFlow is kept apart, since other plans do without.

    Attributes:
        start_seconds: the longest such time so far.

    Example:
        >>> plain = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> compiled = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32, jit_compile=True)
        >>> times = PlanTimes()
        >>> times.note(plain, 3.0, 1.0, start_seconds=6.0)
        >>> times.expected(plain), times.expected(plain, is_built=True), times.expected(compiled)
        (5.5, 2.5, 7.5)
        >>> times.expected(Plan(strategy="none", devices=("CPU:0",), global_batch_size=32, xla_auto_clustering=True))
        17.5
        >>> times.expected(plain, is_new=True)
        11.5
    """

    def __init__(self) -> None:
        self.start_seconds = 0.0
        self._seconds: dict[Plan, tuple[float, float]] = {}

    def note(self, plan: Plan, building: float, measuring: float, *, start_seconds: float = 0.0) -> None:
        """Notes how long a plan took, without the time that its environment took to load TensorFlow."""
        self._seconds[plan] = building, measuring
        self.start_seconds = max(self.start_seconds, start_seconds)

    def expected(self, plan: Plan, *, is_new: bool = False, is_built: bool = False) -> float:
        """The time that a plan is likely to take, and the end of the search.

        It is the mean of those so far that XLA compiles or of the others: of those in the same environment, and with as
        many micro-batches, if there were any.

        Args:
            plan: the plan.
            is_new: whether its environment has yet to load TensorFlow.
            is_built: whether it has been built already.
        """
        alike = {one: seconds for one, seconds in self._seconds.items() if compiles_long(one) == compiles_long(plan)}
        near = {one: seconds for one, seconds in alike.items() if get_environment(one) == get_environment(plan)}
        nearest = {one: seconds for one, seconds in near.items() if one.accumulation_steps == plan.accumulation_steps}
        known = (nearest or near or alike or self._seconds).values()
        building, measuring = map(statistics.fmean, zip(*known, strict=True)) if known else (0.0, 0.0)
        factor = _COMPILES_LONGER if compiles_long(plan) else 1.0
        if plan.xla_auto_clustering and not any(one.xla_auto_clustering for one in self._seconds):
            factor = _CLUSTERS_LONGER
        if plan.accumulation_steps > 1 and not any(one.accumulation_steps > 1 for one in self._seconds):
            factor *= _SPLITS_LONGER
        return factor * (measuring + (not is_built) * building) + _END_SECONDS + is_new * self.start_seconds

    @property
    def longest(self) -> float:
        """The longest time of a plan so far."""
        return max(map(sum, self._seconds.values()), default=0.0)
