"""How long it took to measure plans, and how long another one is likely to take."""

from __future__ import annotations

from tfaccel.planning.plan import Plan

# A plan that XLA compiles may take so many times as long as the others before; where it finds clusters by itself, which
# may be many, as in recurrent layers, longer still.
_COMPILES_LONGER = 1.5
_CLUSTERS_LONGER = 4.0
_END_SECONDS = 1.5  # to end the processes, and to keep the report


def compiles_long(plan: Plan) -> bool:
    """Whether XLA compiles the plan's step, or parts of it."""
    return plan.jit_compile or plan.xla_auto_clustering


class PlanTimes:
    """The seconds from the start of each plan's process to the end of its last window.

    Example:
        >>> plain = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> compiled = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32, jit_compile=True)
        >>> times = PlanTimes()
        >>> times.note(plain, 4.0)
        >>> times.expected(plain), times.expected(compiled)
        (5.5, 7.5)
        >>> times.expected(Plan(strategy="none", devices=("CPU:0",), global_batch_size=32, xla_auto_clustering=True))
        17.5
    """

    def __init__(self) -> None:
        self._seconds: dict[Plan, float] = {}

    def note(self, plan: Plan, seconds: float) -> None:
        """Notes how long a plan took."""
        self._seconds[plan] = seconds

    def expected(self, plan: Plan) -> float:
        """As long as the slowest one so far, of those that XLA compiles or the others, and the end of the search."""
        alike = [seconds for one, seconds in self._seconds.items() if compiles_long(one) == compiles_long(plan)]
        longest = max(alike) if alike else self.longest
        factor = _COMPILES_LONGER if compiles_long(plan) else 1.0
        if plan.xla_auto_clustering and not any(one.xla_auto_clustering for one in self._seconds):
            factor = _CLUSTERS_LONGER
        return longest * factor + _END_SECONDS

    @property
    def longest(self) -> float:
        """The longest time so far."""
        return max(self._seconds.values(), default=0.0)
