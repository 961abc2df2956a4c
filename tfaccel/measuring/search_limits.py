"""How many plans a search may measure, and how long it may take."""

from __future__ import annotations

import math
import time
from collections.abc import Collection

from tfaccel.errors import PlanError
from tfaccel.measuring.candidate import Candidate
from tfaccel.measuring.measure_options import MeasureOptions
from tfaccel.measuring.plan_times import PlanTimes
from tfaccel.planning.plan import Plan


class SearchLimits:
    """The limits of a search that begins now.

    Args:
        options: the budget, the number of plans, and the time limit of a single one.

    Attributes:
        times: how long the plans took; the search notes it.
        deadline: the end of the budget, by `time.monotonic`.

    Example:
        >>> limits = SearchLimits(MeasureOptions(budget_seconds=20, limit_seconds=120))
        >>> limits.of_one_plan
        120.0
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> limits.times.note(plan, 5.0)
        >>> 15 < limits.of_one_plan <= 20
        True
    """

    def __init__(self, options: MeasureOptions) -> None:
        self.times = PlanTimes()
        self.deadline = time.monotonic() + options.budget_seconds
        self._options = options

    @property
    def seconds(self) -> float:
        """The time since the search began."""
        return time.monotonic() - self.deadline + self._options.budget_seconds

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
        return self.seconds + expected <= self._options.budget_seconds

    def why_not(self, plan: Plan, candidates: Collection[Candidate], *, is_new: bool = False) -> str:
        """Why a further plan may not be measured; empty if it may.

        Args:
            plan: the plan.
            candidates: those so far.
            is_new: whether its environment has yet to load TensorFlow.

        Raises:
            PlanError: if time is up, and all that it allowed was one plan.
        """
        options = self._options
        measured = [one for one in candidates if one.windows or one.failure or one.build_seconds]
        if len(measured) >= options.max_candidates:
            count = "One plan was" if len(measured) == 1 else f"{len(measured)} plans were"
            return f"{count} measured (max_candidates={options.max_candidates})."
        if self.seconds + self.times.expected(plan, is_new=is_new) <= options.budget_seconds:
            return ""
        if len(measured) == 1:
            start, longest = self.times.start_seconds, self.times.longest
            raise PlanError(
                f"budget_seconds={options.budget_seconds:g} is too small to compare plans: to start and warm up the "
                f"first one took {start + longest:.1f} seconds. Use at least {math.ceil(start + 4 * longest)}."
            )
        return f"The time was spent (budget_seconds={options.budget_seconds:g})."
