"""The search behind `find_fastest`: moves from plan to plan, each measured in turn with the best one so far.

`PlanSearch` runs it; `Gains` keeps what each move gained, and functions choose the next moves and the reference.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Hardware
from tfaccel.measuring.candidate_child import CandidateChild, CandidateFailed, CandidateServers
from tfaccel.measuring.duel import duel, first_losses, shortest_duel, steps_of_window, what_is_wrong
from tfaccel.measuring.lessons import Lessons
from tfaccel.measuring.report import (
    FIRST_PLAN,
    NO_MOVE_LEFT,
    REFERENCE,
    Candidate,
    MeasureOptions,
    Report,
    SearchProgress,
)
from tfaccel.measuring.search_limits import SearchLimits, SearchMemory, compiles_long, saves_memory
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.moves import (
    MEASURED,
    SMALL_GAIN,
    Move,
    at_once,
    axes_of,
    get_fields,
    moves,
    seldom_loses,
    tried_after_loss,
    tried_again,
)
from tfaccel.planning.own_model import RebuiltModel
from tfaccel.planning.plan import Plan, plan_field_names
from tfaccel.planning.plan_environment import installed_allocators
from tfaccel.planning.workload import Workload
from tfaccel.training.run.result import installed_versions

_INTERRUPTED = "It was interrupted."
_UNCHECKED = " Losses were compared with those of the rules' plan: float32 without XLA could not be measured."
_WAITING_SHARE = 0.05  # of the time; where a CPU waits less for its input, other settings of the pipeline cannot help
_MOSTLY_WAITING = 0.3  # then they come first
_LOADED_AHEAD = 2  # moves
_BUILT_AT_ONCE = 4  # times the best plan's memory should be free where two plans are built beside it


class PlanSearch:
    """A search for the fastest plan of a workload on this machine.

    Args:
        workload, hardware: what the plan is for.
        fixed: plan fields that stay as they are.
        options: how it measures.
        progress: told about each plan.
        left_out: axes that are not tried.
        earlier: the report of an interrupted search, to continue.
    """

    def __init__(
        self,
        workload: Workload,
        hardware: Hardware,
        fixed: Mapping[str, Any],
        options: MeasureOptions,
        *,
        progress: SearchProgress,
        left_out: Collection[str] = (),
        earlier: Report | None = None,
    ) -> None:
        self._workload, self._hardware, self._fixed, self._options = workload, hardware, fixed, options
        self._progress, self._left_out, self._earlier = progress, left_out, earlier
        self._lessons = Lessons.of(hardware)
        self._candidates: dict[Plan, Candidate] = {}
        self._chosen: Plan | None = None
        self._gains = Gains()
        self._stopped_because = _INTERRUPTED
        self._reference: Plan | None = None
        self._reference_losses: tuple[float, ...] | None = None
        self._step_operations: int | None = None
        self._kernels_need_float32 = False
        self._limits = SearchLimits(options, is_taught=self._lessons.num_searches > 0)
        self._ahead: CandidateChild | None = None  # builds the plan after the next one
        self._measured_since = 0.0  # by `time.monotonic`
        self.has_earlier = False

    def run(self, servers: CandidateServers, task: dict[str, Any]) -> None:
        """Measures the reference, the rules' plan, and the moves from there.

        Raises:
            PlanError: if no plan could be measured, or the budget ended before a second one could be.
        """
        self._servers, self._task = servers, task
        self._memory = SearchMemory(servers, task, self._hardware, limit_seconds=self._options.limit_seconds)
        first = default_plan(self._hardware, self._workload, **self._fixed)
        self._reference = reference = get_reference(first, self._workload)
        for plan in (reference, *(move.applied_to(first) for move in self._moves()[:_LOADED_AHEAD])):
            if plan is not None:
                servers.of(plan)  # new environments load TensorFlow side by side
        best = self._started(reference, FIRST_PLAN if reference == first else REFERENCE)
        if best is not None:
            self._step_operations = best.counted_beside()
            self._kernels_need_float32 = best.built["kernels_need_float32"]
        if best is not None and any(getattr(reference, name) != value for name, value in self._fixed.items()):
            best.end()
            self._note(
                replace(best.candidate, rejection="Without your fixed fields; measured for the reference loss only.")
            )
            best = None
        if best is not None:
            self._choose(best)
        if reference != first and not self._is_over(first):
            best = self._better(best, self._started(first, FIRST_PLAN))
        if self._earlier is not None:
            best = self._continued(best, self._earlier)
        for move in self._memory.remedies(first, self._fixed) if best is None else ():
            best = best or self._better(None, self._started(replace(first, **dict(move.changes)), move.axis))
        if best is None:
            raise self._no_plan()
        self._move_from(best)

    def _no_plan(self) -> PlanError:
        causes = [f"{one.axis}: {one.failure or one.rejection}" for one in self._candidates.values()]
        limit = "" if self._stopped_because == _INTERRUPTED else f" {self._stopped_because}"
        return PlanError(f"No plan could be measured. {'; '.join(causes)}{limit}")

    def _continued(self, best: CandidateChild | None, earlier: Report) -> CandidateChild | None:
        """Takes over what an earlier search has measured; returns the best plan, running."""
        for one in earlier.candidates:
            if one.speedup is not None or one.failure or (one.rejection and one.build_seconds is not None):
                self._candidates.setdefault(one.plan, one)
        chosen = earlier.candidates[earlier.chosen]
        runs_already = best is not None and best.candidate.plan == earlier.plan
        if runs_already or chosen.failure:
            self.has_earlier = True
            return best
        found = self._better(best, self._started(earlier.plan, chosen.axis))
        self.has_earlier = True
        if found is not None and found.candidate.plan == earlier.plan:
            self._gains.take_over(earlier.gains, earlier.plan)
        return found

    def _move_from(self, best: CandidateChild) -> None:
        """Tries one move after the other, and goes on from the better plan."""
        first = best.candidate.plan
        waiting = self._moves(best.share_of_waiting)
        waiting[:0] = self._at_once(best, waiting[:2])
        lost: list[Move] = []
        skipped = ""
        while waiting:
            move = waiting.pop(0)
            plan = move.applied_to(best.candidate.plan)
            waits_little = best.share_of_waiting < _WAITING_SHARE
            if plan is None or plan in self._candidates or (move.axis == "input" and waits_little):
                continue
            if self._is_over(plan):
                if not compiles_long(plan) and self._servers.has(plan):  # others would take as long
                    break
                skipped, self._stopped_because = self._stopped_because, _INTERRUPTED
                continue
            if too_large := self._memory.why_not(plan, self._candidates):
                self._note(Candidate(plan=plan, axis=move.axis, rejection=too_large))
                continue
            gains = self._gains.by_axis(best.candidate.plan)
            following = self._following(best, move, waiting=tried_after_loss(move, gains, first) + waiting)
            challenger = self._started(plan, move.axis, following=following)
            before, best = best, self._better(best, challenger) or best
            if challenger is not None:
                self._note_times(challenger)
            gains = self._gains.by_axis(best.candidate.plan)
            if self._limits.is_taught and len(axes_of(move.axis)) > 1 and gains.get(move.axis, 1.0) < SMALL_GAIN:
                self._limits.is_taught = False  # this model is unlike those before
                waiting = self._moves(best.share_of_waiting)
            if best is before:
                lost.append(move)
                less = [Move(one.axis, move.changes + one.changes) for one in self._memory.remedies(plan, self._fixed)]
                waiting = less + tried_after_loss(move, gains, first) + waiting
            else:
                others = [one for one in waiting if not (saves_memory(move) and saves_memory(one))]
                waiting = tried_again(move.axis, lost, gains, first) + sorted(others, key=self._gains.undone_by)
        else:
            self._stopped_because = skipped or NO_MOVE_LEFT
        if not best.candidate.windows:  # no other plan could be compared with it
            try:
                best.window(steps_of_window(best))
            except CandidateFailed as error:
                self._note_failure(best, error)
                raise self._no_plan() from error
        if not any(one.step_operations for one in self._candidates.values()):
            best.counted()
        self._candidates[best.candidate.plan] = best.candidate
        best.end()
        self._drop_ahead()

    def _following(self, best: CandidateChild, move: Move, waiting: Sequence[Move]) -> Candidate | None:
        """The plan after the next one, if it may be built beside that: on CPUs, whose cores are idle while tracing.

        Args:
            best: the best plan.
            move: the next one.
            waiting: those to try if it loses; if it seldom does, those of them that do not undo it go on from it.
        """
        plan = best.candidate.plan
        if seldom_loses(move):
            plan = move.applied_to(plan) or plan
            won = dict(move.changes)
            waiting = [one for one in waiting if all(won.get(name, value) == value for name, value in one.changes)]
        limit, is_cpu = self._memory.limit_bytes(plan), plan.devices[0].startswith("CPU")
        fits = limit is not None and _BUILT_AT_ONCE * (best.candidate.peak_bytes or limit) < limit
        if not (is_cpu and fits and len(self._candidates) + 1 < self._options.max_candidates):
            return None
        for one in waiting:
            following = one.applied_to(plan)
            if following is None or following in {move.applied_to(best.candidate.plan), *self._candidates}:
                continue
            seconds, is_new = shortest_duel(best), not self._servers.has(following)
            is_quick = not (is_new or compiles_long(following) or one.axis in ("batch", "input"))
            has_time = self._limits.allows_two(following, duel_seconds=seconds, is_new=is_new)
            return Candidate(plan=following, axis=one.axis) if is_quick and has_time else None
        return None

    def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.end()

    def _new_child(self, plan: Plan, axis: str) -> CandidateChild:
        """A process for a plan, which may be running already."""
        ahead, limit = self._ahead, self._limits.of_one_plan
        if ahead is not None and ahead.candidate.plan == plan:
            self._ahead, ahead.limit_seconds = None, limit
            return ahead
        self._drop_ahead()
        task = {**self._task, "memory_limit_bytes": self._memory.limit_bytes(plan)}
        return CandidateChild(self._servers.of(plan), task, plan, axis, limit_seconds=limit)

    def _at_once(self, best: CandidateChild, first_two: list[Move]) -> list[Move]:
        """Both moves combined, if both paid for other models, or probably pay and time allows one more plan only."""
        if (found := at_once(best.candidate.plan, first_two)) is None:
            return []
        move, plan = found
        seconds, is_new = shortest_duel(best), not self._servers.has(plan)
        if all(map(self._lessons.pays, first_two)):
            return [move]
        return [] if self._limits.allows_two(plan, duel_seconds=seconds, is_new=is_new) else [move]

    def _moves(self, share_of_waiting: float = 0.0) -> list[Move]:
        """The moves in the order in which they are tried: those of the input first, if steps mostly wait."""
        found = moves(
            self._hardware,
            self._workload,
            self._fixed,
            allocators=installed_allocators(),
            tune_batch=self._options.tune_batch,
            step_operations=self._step_operations,
            kernels_need_float32=self._kernels_need_float32,
        )
        found = [one for one in found if one.axis not in self._left_out]
        if self._limits.is_taught and not self._kernels_need_float32:  # which other models' gains say little about
            found = self._lessons.ordered(found)
        return sorted(found, key=lambda move: move.axis != "input") if share_of_waiting > _MOSTLY_WAITING else found

    def _is_over(self, plan: Plan) -> bool:
        """Whether a limit does not allow this further plan; notes which."""
        is_new, is_built = not self._servers.has(plan), self._ahead is not None and self._ahead.candidate.plan == plan
        reason = self._limits.why_not(plan, self._candidates.values(), is_new=is_new, is_built=is_built)
        self._stopped_because = reason or self._stopped_because
        return bool(reason)

    def _started(self, plan: Plan, axis: str, *, following: Candidate | None = None) -> CandidateChild | None:
        """A process for a plan, built, checked and warm; None if it failed or was rejected.

        Args:
            following: a plan that is built meanwhile.
        """
        self._progress.started(plan, axis)
        child = self._new_child(plan, axis)
        self._candidates[plan] = child.candidate
        try:
            if following is not None:
                self._ahead = self._new_child(following.plan, following.axis)
                self._ahead.order_first_steps(1)
            child.build(1)
            self._wait_for_ahead()
            self._measured_since = time.monotonic()
            losses = first_losses(child, self._reference_losses)
        except CandidateFailed as error:
            self._note_failure(child, error)
            return None
        self._note_times(child)
        if self._reference_losses is None:
            self._reference_losses = losses
        reference = self._reference or plan
        wrong = what_is_wrong(child, losses, reference=reference, reference_losses=self._reference_losses)
        if wrong:
            child.end()
            self._note(replace(child.candidate, rejection=wrong))
            return None
        self._candidates[plan] = child.candidate
        return child

    def _wait_for_ahead(self) -> None:
        """Waits until the other plan is built, so that it disturbs no measurement; one that fails is built again."""
        if self._ahead is not None:
            try:
                self._ahead.build(1)
            except CandidateFailed:
                self._drop_ahead()

    def _note_times(self, child: CandidateChild) -> None:
        """Notes how long a plan took so far: to build it, and since then."""
        building = (child.candidate.build_seconds or 0.0) + (child.candidate.first_step_seconds or 0.0)
        measuring = time.monotonic() - self._measured_since
        self._limits.times.note(child.candidate.plan, building, measuring, start_seconds=child.start_seconds)

    def _better(self, best: CandidateChild | None, challenger: CandidateChild | None) -> CandidateChild | None:
        """Runs both in turn; the loser's process ends."""
        if challenger is None:
            return best
        if best is None:
            return self._choose(challenger)
        try:
            found = duel(best, challenger, deadline=self._limits.deadline)
        except CandidateFailed as error:
            is_best = error.child is best
            self._note_failure(best if is_best else challenger, error)
            return self._choose(challenger) if is_best else best
        challenger.candidate = replace(challenger.candidate, speedup=found.speedup)
        axis, before, plan = challenger.candidate.axis, best.candidate.plan, challenger.candidate.plan
        is_simpler = num_settings(plan, self._reference or plan) < num_settings(before, self._reference or plan)
        self._candidates[before] = best.candidate
        if found.chooses_challenger(is_simpler=is_simpler):
            best.end()
            self._candidates[before] = replace(best.candidate, rejection=found.reason_of_dethroning(axis))
            self._gains.won(axis, found.speedup, before=before, after=plan)
            self._note(challenger.candidate)
            return self._choose(challenger)
        challenger.end()
        self._note(replace(challenger.candidate, rejection=found.reason_of_loss()))
        return best

    def _choose(self, child: CandidateChild) -> CandidateChild:
        self._chosen = child.candidate.plan
        return child

    def _note(self, candidate: Candidate) -> None:
        self._candidates[candidate.plan] = candidate
        self._progress.measured(candidate)

    def _note_failure(self, child: CandidateChild, error: CandidateFailed) -> None:
        self._memory.note(child.candidate.plan, error)
        self._note(child.fail(str(error)))

    @property
    def has_result(self) -> bool:
        """Whether a plan has been chosen so far."""
        return self._chosen is not None

    def report(self) -> Report:
        """What was found so far."""
        if self._chosen is None:
            raise PlanError("No plan could be measured.")
        chosen = self._candidates[self._chosen]
        reasons = {**dict(self._chosen.reasons), **self._gains.reasons(self._chosen)}
        self._candidates[self._chosen] = replace(chosen, plan=replace(chosen.plan, reasons=tuple(reasons.items())))
        unchecked = self._reference is not None and self._candidates[self._reference].failure
        return Report(
            workload=self._workload.name,
            candidates=tuple(self._candidates.values()),
            chosen=list(self._candidates).index(self._chosen),
            gains=self._gains.by_axis(self._chosen),
            seconds=self._limits.seconds + (self._earlier.seconds if self._earlier is not None else 0.0),
            hardware=self._hardware.to_json(),
            versions=installed_versions(),
            stopped_because=self._stopped_because + (_UNCHECKED if unchecked else ""),
            complete=self._stopped_because != _INTERRUPTED,
            budget_seconds=self._limits.budget_seconds,
            max_candidates=self._options.max_candidates,
            num_lessons=self._lessons.num_searches,
            left_out=tuple(self._left_out),
        )


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

    def undone_by(self, move: Move) -> bool:
        """Whether a move changes what an earlier one won by: XLA after fused kernels, or the opposite threads."""
        won = [
            one.changes for one in self._wins if get_fields(one.axis) and one.axis != "batch"
        ]  # larger may gain more
        return any(changes.get(name, value) != value for changes in won for name, value in move.changes)

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


_FLOAT32_ALONE: Mapping[str, Any] = {
    "dtype_policy": "float32",
    "jit_compile": False,
    "grappler_bfloat16": False,
    "xla_auto_clustering": False,
}
_REASON = f"{MEASURED}: float32 without XLA, with which all plans are compared."


def num_settings(plan: Plan, reference: Plan) -> int:
    """The number of fields in which a plan differs from the reference: of two that are as fast, fewer are simpler.

    Example:
        >>> plain = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)
        >>> num_settings(replace(plain, jit_compile=True), plain)
        1
    """
    return sum(getattr(plan, name) != getattr(reference, name) for name in plan_field_names())


def get_reference(first: Plan, workload: Workload) -> Plan:
    """The rules' plan in float32 without XLA; a Keras model keeps its own dtype policy, which no plan can change.

    Example:
        >>> work = Workload("made_up", object, dict, lambda *args, **kwargs: None, global_batch_size=8)
        >>> first = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, dtype_policy="mixed_bfloat16")
        >>> get_reference(first, work).dtype_policy
        'float32'
    """
    fields = dict(_FLOAT32_ALONE)
    if isinstance(workload.build_model, RebuiltModel):
        del fields["dtype_policy"]
    reference = replace(first, **fields)
    if reference == first:
        return first
    return replace(reference, reasons=tuple({**dict(first.reasons), **dict.fromkeys(fields, _REASON)}.items()))
