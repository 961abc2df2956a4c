"""Options of `find_fastest`, and the callbacks that report its progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfaccel.argument_types import checks_types
from tfaccel.errors import PlanError
from tfaccel.known_names import suggests_names
from tfaccel.measuring.candidate import Candidate
from tfaccel.planning.option_checks import check_seed
from tfaccel.planning.plan import Plan
from tfaccel.short_repr import short_repr

if TYPE_CHECKING:
    from tfaccel.measuring.report import Report


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
