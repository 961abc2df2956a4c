"""`find_fastest`: the fastest plan that computes what float32 computes, found by measuring on this machine."""

from __future__ import annotations

import logging
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Hardware
from tfaccel.measuring.candidate import Candidate, CandidateWindow
from tfaccel.measuring.candidate_child import CandidateChild, CandidateFailed
from tfaccel.measuring.measurement import relative_spread
from tfaccel.measuring.report import Report
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.load_workload import as_workload
from tfaccel.planning.moves import AXES, Move, moves
from tfaccel.planning.plan import Plan, plan_field_names
from tfaccel.planning.plan_cache import cached_plan, keep_plan
from tfaccel.planning.reference import Origin, Reference
from tfaccel.planning.workload import Workload
from tfaccel.processes.fork_server import ForkServer
from tfaccel.training.run.result import installed_versions

logger = logging.getLogger("tfaccel")

LOSS_TOLERANCE = 0.05  # relative to the reference's loss
CHECKED_STEPS = 4  # in each of the two windows whose losses are compared with the reference's
WINDOW_SECONDS = 0.3
MIN_GAIN = 0.02  # smaller gains are not worth a less simple plan
_MIN_ROUNDS, _MAX_ROUNDS = 3, 7
_CLEARLY_SLOWER = 0.9
_PRELOADED = ("tfaccel.measuring.candidate_program", "tfaccel.training.run.timed_steps", "tfaccel.training.runtime")
_COUPLED = ("precision", "XLA")  # the gain of one depends on the other

OnCandidate = Callable[[Candidate], None]


def find_fastest(
    workload: Any,
    x: Any = None,
    y: Any = None,
    *,
    budget_seconds: float = 60.0,
    max_candidates: int = 12,
    limit_seconds: float = 120.0,
    hardware: Hardware | None = None,
    seed: int = 0,
    use_cache: bool = True,
    on_candidate: OnCandidate = lambda candidate: None,
    **options: Any,
) -> Report:
    """Measures plans on this machine, and returns the fastest one that computes what float32 computes.

    The search begins with the plan of the rules (`tfaccel.default_plan`) and moves along one axis at a time: precision,
    XLA, devices, threads, input. Each plan trains in a process of its own, so that running out of memory, a crash or a
    hang is a recorded result. A challenger and the best plan so far run in turn, window by window, so that a temporary
    slowdown of the machine affects both. A plan is rejected if its loss is not finite, or departs from that of float32
    without XLA on the same batches by more than 5 %. Nothing that is passed in is trained or changed.

    Args:
        workload: what to train: a `Workload`, a recipe's name, an import path, or a function, as for `tfaccel.train`.
        x, y: data, if `workload` is a model or a function that builds one.
        budget_seconds: about how long to measure.
        max_candidates: how many plans to measure at most.
        limit_seconds: time limit for one plan to build its model, or to run one window.
        hardware: the machine; None to detect it.
        seed: determines weights and data.
        use_cache: return the report of an earlier call for the same workload, machine, versions and fixed fields, if
            there is one. False measures again. The result is kept in any case, in `TFACCEL_CACHE` or ~/.cache/tfaccel,
            where `tfaccel.train` finds it.
        on_candidate: called with each measured plan.
        **options: plan fields, whose values stay fixed; and whatever `tfaccel.train` takes to make a workload from
            `workload`, `x` and `y`.

    Returns:
        A `Report`; its `plan` can be passed to `tfaccel.train` and `tfaccel.fit`.

    Raises:
        PlanError: if a fixed field cannot run here, or no plan could be measured; the message lists the causes.
        WorkloadError: if the workload cannot be made, or cannot be sent to another process.

    Example:
        >>> import keras, numpy as np, tfaccel
        >>> def build_model():
        ...     return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> x = np.ones((64, 4))
        >>> report = find_fastest(build_model, x, x[:, :1], loss="mse", max_candidates=1)
        >>> report.plan.dtype_policy
        'float32'
    """
    fixed = {name: options.pop(name) for name in plan_field_names() if name in options}
    made = Workload.of(workload, x, y, **options) if x is not None else as_workload(workload, **options)
    hardware = hardware or detect_hardware()
    if use_cache and (known := cached_plan(hardware, made, fixed)) is not None:
        return replace(Report.from_json(known.report), from_cache=True)
    given = made if x is not None or not options else workload
    search = _Search(made, hardware, fixed, seed=seed, limit_seconds=limit_seconds, on_candidate=on_candidate)
    started = time.monotonic()
    search.deadline, search.max_candidates = started + budget_seconds, max_candidates
    folder = Path(tempfile.mkdtemp(prefix="tfaccel-"))
    server = ForkServer(_PRELOADED, folder=folder, environment={"TF_CONFIG": None, "KERAS_BACKEND": "tensorflow"})
    try:
        search.run(server, _task(given if isinstance(given, str) else made, options if given is workload else {}, seed))
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
    report = search.report(time.monotonic() - started)
    keep_plan(hardware, made, fixed, report.plan, speedup=report.speedup, report=report.to_json())
    return report


def _task(given: Any, options: Mapping[str, Any], seed: int) -> dict[str, Any]:
    origin, by_value = Origin.of([given])
    reference = Reference.of(given, "workload", plain_name="recipe", by_value=by_value)
    return {
        "origin": {"folder": origin.folder, "main_file": origin.main_file},
        "workload": {"kind": reference.kind, "text": reference.text, "name": reference.name},
        "options": dict(options),
        "seed": seed,
    }


class _Search:
    """One search for the fastest plan."""

    def __init__(
        self,
        workload: Workload,
        hardware: Hardware,
        fixed: Mapping[str, Any],
        *,
        seed: int,
        limit_seconds: float,
        on_candidate: OnCandidate,
    ) -> None:
        self._workload, self._hardware, self._fixed = workload, hardware, fixed
        self._limit_seconds = limit_seconds
        self._on_candidate = on_candidate
        self.deadline = math.inf
        self.max_candidates = 0
        self._candidates: list[Candidate] = []
        self._chosen = 0
        self._gains: dict[str, float] = {}
        self._stopped_because = "No further move is left."
        self._reference: tuple[float, float] | None = None
        self._typical_seconds = 0.0

    def run(self, server: ForkServer, task: dict[str, Any]) -> None:
        """Measures the reference, the rules' plan, and the moves from there."""
        self._server, self._task = server, task
        first = default_plan(self._hardware, self._workload, **self._fixed)
        reference = replace(first, dtype_policy="float32", jit_compile=False)
        best = self._started(reference, "first plan" if reference == first else "reference")
        if reference != first:
            challenger = self._started(first, "first plan")
            best = self._better(best, challenger) if self._may_choose(reference) else self._other(best, challenger)
        if best is None:
            causes = "; ".join(f"{one.axis}: {one.failure or one.rejection}" for one in self._candidates)
            raise PlanError(f"No plan could be measured. {causes}.")
        self._move_from(best)

    def _move_from(self, best: CandidateChild) -> None:
        """Tries one move after the other, and goes on from the better plan."""
        waiting = moves(self._hardware, self._workload, self._fixed)
        seen = {candidate.plan for candidate in self._candidates}
        lost: list[Move] = []
        while waiting:
            if len(self._candidates) >= self.max_candidates:
                self._stopped_because = f"{self.max_candidates} plans were measured (max_candidates)."
                break
            if time.monotonic() + self._typical_seconds > self.deadline:
                self._stopped_because = "The time was spent (budget_seconds)."
                break
            move = waiting.pop(0)
            plan = move.applied_to(best.candidate.plan)
            if plan is None or plan in seen:
                continue
            seen.add(plan)
            challenger = self._started(plan, move.axis)
            before = best
            best = self._better(best, challenger) or best
            if best is before:
                lost.append(move)
            elif move.axis in _COUPLED:  # what lost before may win now
                again = [one for one in lost if one.axis in _COUPLED and one.axis != move.axis]
                waiting = again + waiting
        best.end()

    def _may_choose(self, plan: Plan) -> bool:
        return all(getattr(plan, name) == value for name, value in self._fixed.items())

    def _other(self, reference: CandidateChild | None, first: CandidateChild | None) -> CandidateChild | None:
        if reference is not None:
            reference.end()
            self._note(replace(reference.candidate, rejection="It lacks what you fixed; its loss is the reference."))
        return first

    def _started(self, plan: Plan, axis: str) -> CandidateChild | None:
        """A process for a plan, built, checked and warm; None if it failed or was rejected."""
        began = time.monotonic()
        child = CandidateChild(self._server, self._task, plan, axis, limit_seconds=self._limit_seconds)
        self._candidates.append(child.candidate)
        try:
            losses = (child.build(CHECKED_STEPS).loss, child.warm_up(CHECKED_STEPS).loss)
        except CandidateFailed as error:
            self._note(child.fail(str(error)))
            return None
        self._typical_seconds = max(self._typical_seconds, time.monotonic() - began)
        if self._reference is None:
            self._reference = losses
        wrong = departure(losses, self._reference)
        if wrong:
            child.end()
            self._note(replace(child.candidate, rejection=wrong))
            return None
        self._candidates[-1] = child.candidate
        return child

    def _better(self, best: CandidateChild | None, challenger: CandidateChild | None) -> CandidateChild | None:
        """Runs both in turn; the loser's process ends."""
        if best is None or challenger is None:
            return best or challenger
        try:
            ratios = self._duel(best, challenger)
        except CandidateFailed as error:
            self._note(challenger.fail(str(error)))
            return best
        speedup = statistics.median(ratios)
        noise = max(MIN_GAIN, relative_spread(ratios) / 2)
        challenger.candidate = replace(challenger.candidate, speedup=speedup)
        wins = speedup > 1 + noise
        loser = best if wins else challenger
        loser.end()
        if wins:
            axis = challenger.candidate.axis
            self._gains[axis] = self._gains.get(axis, 1.0) * speedup
            self._note(best.candidate)
            self._note(challenger.candidate)
            self._chosen = self._position(challenger.candidate)
            return challenger
        text = "No measurable difference" if speedup > 1 - noise else "Slower"
        self._note(replace(challenger.candidate, rejection=f"{text}: {speedup:.2f} times the speed (± {noise:.2f})."))
        self._note(best.candidate)
        return best

    def _duel(self, best: CandidateChild, challenger: CandidateChild) -> list[float]:
        """The challenger's speed relative to the best plan's, round by round."""
        ratios: list[float] = []
        num_steps = [steps_of_window(one) for one in (best, challenger)]
        for turn in range(_MAX_ROUNDS):
            pair = [(best, num_steps[0]), (challenger, num_steps[1])]
            found = {id(one): one.window(count) for one, count in (pair if turn % 2 == 0 else reversed(pair))}
            rates = [rate_of(found[id(one)], one.candidate.plan) for one in (best, challenger)]
            ratios.append(rates[1] / rates[0])
            if turn >= 1 and max(ratios) < _CLEARLY_SLOWER:
                break
            if turn + 1 >= _MIN_ROUNDS and (min(ratios) > 1 + MIN_GAIN or max(ratios) < 1):
                break
            if turn + 1 >= _MIN_ROUNDS and time.monotonic() > self.deadline:
                break
        return ratios

    def _position(self, candidate: Candidate) -> int:
        return next(i for i, one in enumerate(self._candidates) if one.plan == candidate.plan)

    def _note(self, candidate: Candidate) -> None:
        self._candidates[self._position(candidate)] = candidate
        self._on_candidate(candidate)

    def report(self, seconds: float) -> Report:
        """What was found."""
        chosen = self._candidates[self._chosen]
        reasons = dict(chosen.plan.reasons)
        for axis, gain in self._gains.items():
            for name in AXES.get(axis, ()):
                reasons[name] = f"Measured here: {gain:.2f} times as fast as before, with this {axis}."
        candidates = list(self._candidates)
        candidates[self._chosen] = replace(chosen, plan=replace(chosen.plan, reasons=tuple(reasons.items())))
        return Report(
            workload=self._workload.name,
            candidates=tuple(candidates),
            chosen=self._chosen,
            gains=self._gains,
            seconds=seconds,
            hardware=self._hardware.to_json(),
            versions=installed_versions(),
            stopped_because=self._stopped_because,
        )


def steps_of_window(child: CandidateChild) -> int:
    """The number of steps of about `WINDOW_SECONDS`, estimated by an untimed window."""
    if child.candidate.windows:
        return child.candidate.windows[0].num_steps
    probe = child.warm_up(CHECKED_STEPS)
    return max(2, round(WINDOW_SECONDS * probe.num_steps / probe.seconds))


def rate_of(window: CandidateWindow, plan: Plan) -> float:
    """Examples per second."""
    return window.num_steps * plan.global_batch_size / window.seconds


def departure(losses: tuple[float, float], reference: tuple[float, float]) -> str:
    """Why losses are not those of the reference; empty if they are.

    Example:
        >>> departure((1.0, 0.91), (1.0, 0.9)), departure((1.0, 1.2), (1.0, 0.9))
        ('', 'Its loss is 1.2 where that of float32 is 0.9: more than 5 % apart.')
    """
    for loss, wanted in zip(losses, reference, strict=True):
        if not math.isfinite(loss):
            return "Its loss is not finite."
        if abs(loss - wanted) > LOSS_TOLERANCE * max(abs(wanted), 1e-3):
            return f"Its loss is {loss:.4g} where that of float32 is {wanted:.4g}: more than 5 % apart."
    return ""
