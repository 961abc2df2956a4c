"""`Candidate`, a plan that was measured, and `MeasureOptions`: how `find_fastest` measures plans."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfaccel.argument_types import checks_types
from tfaccel.errors import PlanError
from tfaccel.known_names import suggests_names
from tfaccel.measuring.measurement import relative_spread
from tfaccel.planning.option_checks import check_seed
from tfaccel.planning.plan import Plan
from tfaccel.records import Record
from tfaccel.short_repr import short_repr

if TYPE_CHECKING:
    from tfaccel.measuring.report import Report


@short_repr
@dataclass(frozen=True, kw_only=True)
class CandidateWindow:
    """Some training steps in a row, timed.

    Args:
        seconds: wall time of all of them, the wait for their batches included.
        num_steps: how many.
        loss: their mean training loss.
        waited_seconds: how long the steps waited for their batches; None if unknown.
        cpu_seconds: CPU time of the process, all threads; None if unknown.
        gpu_utilization: the fraction of the time in which the GPUs computed something; None if unknown.
    """

    seconds: float
    num_steps: int
    loss: float
    waited_seconds: float | None = None
    cpu_seconds: float | None = None
    gpu_utilization: float | None = None


@short_repr
@dataclass(frozen=True, kw_only=True)
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
        >>> window = CandidateWindow(seconds=0.5, num_steps=10, loss=1.0)
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> Candidate(plan=plan, axis="first plan", windows=(window,)).examples_per_second
        640.0
    """

    plan: Plan
    axis: str
    build_seconds: float | None = None
    first_step_seconds: float | None = None
    windows: tuple[CandidateWindow, ...] = ()
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


@short_repr
@suggests_names
@checks_types(PlanError, checks_numbers=True)
@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """How `find_fastest` measures.

    Args:
        budget_seconds: start no further plan that would not end within this time.
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

    budget_seconds: float = 60.0
    max_candidates: int = 12
    limit_seconds: float = 120.0
    seed: int = 0
    use_cache: bool = True
    tune_batch: bool = False
    for_new_process: bool = False

    def __post_init__(self) -> None:
        for name in ("budget_seconds", "max_candidates", "limit_seconds"):
            if not (value := getattr(self, name)) > 0:
                raise PlanError(f"{name} must be positive. Received: {name}={value!r}.")
        check_seed(self.seed)


class SearchProgress:
    """What `find_fastest` calls while it measures. This one does nothing; override what you need."""

    def started(self, plan: Plan, axis: str) -> None:
        """A plan is about to be measured; `axis` tells how it differs, as in `Candidate`."""

    def measured(self, candidate: Candidate) -> None:
        """A plan has been measured."""

    def interrupted(self, report: Report) -> None:
        """The search is interrupted, by Ctrl-C or an error; `report` has what was measured, and is kept."""
