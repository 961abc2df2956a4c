"""How long it took to measure plans, and how long another one is likely to take."""

from __future__ import annotations

from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_environment import get_environment

# A plan that XLA compiles may take so many times as long as the others before; where it finds clusters by itself, which
# may be many, as in recurrent layers, longer still. A plan with micro-batches is first checked for what they change.
_COMPILES_LONGER = 1.5
_CLUSTERS_LONGER = 4.0
_SPLITS_LONGER = 2.0
_END_SECONDS = 1.5  # to end the processes, and to keep the report


def compiles_long(plan: Plan) -> bool:
    """Whether XLA compiles the plan's step, or parts of it."""
    return plan.jit_compile or plan.xla_auto_clustering


class PlanTimes:
    """The seconds from the start of each plan's process to the end of its last window.

    The time until a new environment has loaded TensorFlow is kept apart, since other plans do without.

    Attributes:
        start_seconds: the longest such time so far.

    Example:
        >>> plain = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> compiled = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32, jit_compile=True)
        >>> times = PlanTimes()
        >>> times.note(plain, 4.0, start_seconds=6.0)
        >>> times.expected(plain), times.expected(compiled)
        (5.5, 7.5)
        >>> times.expected(Plan(strategy="none", devices=("CPU:0",), global_batch_size=32, xla_auto_clustering=True))
        17.5
        >>> times.expected(plain, is_new=True)
        11.5
    """

    def __init__(self) -> None:
        self.start_seconds = 0.0
        self._seconds: dict[Plan, float] = {}

    def note(self, plan: Plan, seconds: float, *, start_seconds: float = 0.0) -> None:
        """Notes how long a plan took, without the time that its environment took to load TensorFlow."""
        self._seconds[plan] = seconds
        self.start_seconds = max(self.start_seconds, start_seconds)

    def expected(self, plan: Plan, *, is_new: bool = False) -> float:
        """The time that a plan is likely to take, and the end of the search.

        It is that of the slowest one so far, of those that XLA compiles or the others, in the same environment if there
        was one. `is_new` tells that its environment has yet to load TensorFlow.
        """
        alike = {one: seconds for one, seconds in self._seconds.items() if compiles_long(one) == compiles_long(plan)}
        near = [seconds for one, seconds in alike.items() if get_environment(one) == get_environment(plan)]
        longest = max(near or alike.values(), default=self.longest)
        factor = _COMPILES_LONGER if compiles_long(plan) else 1.0
        if plan.xla_auto_clustering and not any(one.xla_auto_clustering for one in self._seconds):
            factor = _CLUSTERS_LONGER
        if plan.accumulation_steps > 1 and not any(one.accumulation_steps > 1 for one in self._seconds):
            factor *= _SPLITS_LONGER
        return longest * factor + _END_SECONDS + is_new * self.start_seconds

    @property
    def longest(self) -> float:
        """The longest time so far."""
        return max(self._seconds.values(), default=0.0)
