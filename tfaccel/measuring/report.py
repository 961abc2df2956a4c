"""The nouns of `find_fastest`: how it measures, each plan that it measured, and the report of all of them."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.planning.option_checks import check_seed
from tfaccel.planning.plan import Plan
from tfaccel.records import Record, SavedRecord
from tfaccel.short_repr import noun
from tfaccel.training.run.performance import TimedWindow

FIRST_PLAN, REFERENCE = "first plan", "reference"  # axes of candidates that no move led to
NO_MOVE_LEFT = "No further move is left."
FIRST_SECONDS, TAUGHT_SECONDS = 30.0, 20.0  # of a search; where earlier ones on this machine show which moves pay
HEADINGS = ("plan", "examples/s", "speed", "spread", "first steps", "memory", "outcome")


@noun
class Candidate(Record):
    """A plan, and what was measured of it.

    Args:
        plan: the plan.
        axis: how it differs from the plan that it was compared with, such as "precision"; "first plan" for the rules'
            choice; "reference" for float32 without XLA.
        build_seconds: time to start a process and build the model; None if that failed.
        first_step_seconds: time of the first steps, which trace and compile.
        windows: the timed windows, in the order in which they ran. Warm-up is not among them.
        speedup: its speed divided by that of the best plan so far, as the median of pairs of windows that ran in turn;
            None if it was not compared.
        peak_bytes: peak memory of its process, or of its GPUs; None if unknown.
        step_operations: floating-point operations of an optimizer step's matrix products and convolutions, counted from
            its graph; only of the chosen plan, as all compute the same. None if they were not or cannot be counted.
        failure: why it could not be measured; empty if it could.
        rejection: why it was not chosen though it could be measured; empty for a plan that was.

    Example:
        >>> window = TimedWindow(seconds=0.5, num_steps=10, loss=1.0)
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> Candidate(plan=plan, axis="first plan", windows=(window,)).examples_per_second
        640.0
    """

    plan: Plan
    axis: str
    build_seconds: float | None = None
    first_step_seconds: float | None = None
    windows: tuple[TimedWindow, ...] = ()
    speedup: float | None = None
    peak_bytes: int | None = None
    step_operations: int | None = None
    failure: str = ""
    rejection: str = ""

    @property
    def examples_per_second(self) -> float | None:
        """The median over the windows; None without windows."""
        rates = [window.num_steps * self.plan.global_batch_size / window.seconds for window in self.windows]
        return statistics.median(rates) if rates else None

    @property
    def spread(self) -> float:
        """The interquartile range of the windows' times per step, divided by their median."""
        return relative_spread([window.seconds / window.num_steps for window in self.windows])


@noun(error=PlanError)
class MeasureOptions:
    """How `find_fastest` measures.

    Args:
        budget_seconds: start no further plan that would not end within this time; None for 30 seconds, or 20 where
            earlier searches on this machine have shown which moves pay, as long as they pay here; more where a single
            plan takes so long.
        max_candidates: number of plans to measure at most.
        limit_seconds: time limit for one plan to build its model, or to run one window.
        seed: determines weights and data.
        use_cache: return the report of an earlier call for the same workload, machine, versions and fixed fields, if
            there is one, or continue it if it was interrupted. False measures again.
        tune_batch: measure other global batch sizes too. They change what is computed, so their losses are only
            checked to be finite, and `tfaccel.train` uses such a plan only if it is passed.
        for_new_process: measure settings too that this process cannot take any more: memory allocators, and, once
            TensorFlow is loaded, oneDNN, auto-clustering and GPU threads.

    Raises:
        PlanError: if a limit is not positive.
        WorkloadError: if the seed is not a whole number from 0 to 2**32 - 1.
    """

    budget_seconds: float | None = None
    max_candidates: int = 12
    limit_seconds: float = 120.0
    seed: int = 0
    use_cache: bool = True
    tune_batch: bool = False
    for_new_process: bool = False

    def __post_init__(self) -> None:
        for name in ("budget_seconds", "max_candidates", "limit_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise PlanError(f"{name} must be positive. Received: {name}={value!r}.")
        check_seed(self.seed)


@noun
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
        num_lessons: of how many earlier searches on this machine the gains decided which moves came first.
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
    num_lessons: int = 0
    left_out: tuple[str, ...] = ()
    kept_in: str | None = None
    command: str = ""

    def covers(self, options: MeasureOptions, left_out: Collection[str]) -> bool:
        """Whether a search with these options and without these axes would find nothing more."""
        if not self.complete or {*self.left_out} - {*left_out}:
            return False
        budget = TAUGHT_SECONDS if options.budget_seconds is None else options.budget_seconds
        within = budget <= self.budget_seconds and options.max_candidates <= self.max_candidates
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


class SearchProgress:
    """What `find_fastest` calls while it measures. This one does nothing; override what you need."""

    def started(self, plan: Plan, axis: str) -> None:
        """A plan is about to be measured; `axis` tells how it differs, as in `Candidate`."""

    def measured(self, candidate: Candidate) -> None:
        """A plan has been measured."""

    def interrupted(self, report: Report) -> None:
        """The search is interrupted, by Ctrl-C or an error; `report` has what was measured, and is kept."""


def relative_spread(values: Sequence[float]) -> float:
    """Interquartile range / median; 0 for a single value.

    Example:
        >>> relative_spread([1.0, 2.0, 3.0, 4.0, 5.0])
        0.6666666666666666
    """
    if len(values) < 2:
        return 0.0
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / median
