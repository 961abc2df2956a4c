"""`BatchOptions`: how `find_batch_size` searches, and the batch sizes that it may try."""

from __future__ import annotations

from dataclasses import dataclass

from tfaccel.argument_types import checks_types
from tfaccel.errors import PlanError
from tfaccel.known_names import suggests_names
from tfaccel.planning.option_checks import check_seed
from tfaccel.planning.plan import Plan
from tfaccel.short_repr import short_repr

_MOST = 2**24  # micro-batch: there is no end to it where neither memory, nor data, nor the user limits it


@short_repr
@suggests_names
@checks_types(PlanError, checks_numbers=True)
@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """How `find_batch_size` searches.

    Args:
        memory_limit_bytes: memory that one process, or one GPU, may use; None for all that is available.
        head_room: the fraction of it that is to stay free.
        budget_seconds: start nothing more that would not end within this time.
        limit_seconds: time limit for one batch size to build its model, or to run one window.
        max_replica_batch_size: try no larger ones; None for no limit but memory and data.
        seed: determines weights and data.

    Raises:
        PlanError: if a limit is not positive, or the head-room is not a fraction.
        WorkloadError: if the seed is not a whole number from 0 to 2**32 - 1.
    """

    memory_limit_bytes: int | None = None
    head_room: float = 0.1
    budget_seconds: float = 300.0
    limit_seconds: float = 120.0
    max_replica_batch_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("memory_limit_bytes", "budget_seconds", "limit_seconds", "max_replica_batch_size"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise PlanError(f"{name} must be positive. Received: {name}={value!r}.")
        if not 0 <= self.head_room < 1:
            raise PlanError(f"head_room must be a number from 0 to below 1. Received: head_room={self.head_room!r}.")
        check_seed(self.seed)


@dataclass(frozen=True)
class BatchBound:
    """The largest batch that may be tried.

    Args:
        micro_batch_size: per replica and accumulation step; at least 1.
        reason: why there is no larger one, as a sentence.
    """

    micro_batch_size: int
    reason: str


def batch_bound(plan: Plan, options: BatchOptions, num_examples: int | None) -> BatchBound:
    """The largest batch that the data and the user allow.

    Args:
        plan: the plan whose batch size varies: a replica batch is a multiple of its accumulation steps.
        options: how to search.
        num_examples: in an epoch; None if unknown.

    Raises:
        PlanError: if not even the smallest batch is allowed.

    Example:
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> batch_bound(plan, BatchOptions(), 96)
        BatchBound(micro_batch_size=96, reason='No larger batch is possible: an epoch has 96 examples.')
    """
    unit, given = plan.accumulation_steps, options.max_replica_batch_size
    of_data = num_examples and num_examples // plan.num_replicas
    if of_data is not None and of_data < unit:
        raise PlanError(
            f"An epoch has fewer examples than the smallest batch: {unit} per replica and step, on "
            f"{plan.num_replicas} replicas. Use more data, fewer replicas or fewer accumulation steps."
        )
    if given is not None and given < unit:
        raise PlanError(
            f"max_replica_batch_size must be at least accumulation_steps={unit}. Received: "
            f"max_replica_batch_size={given}. Raise it (--max_replica_batch_size), or use fewer accumulation steps."
        )
    if given is not None and (of_data is None or given // unit < of_data // unit):
        reason = f"No larger batch was allowed: max_replica_batch_size={given} (--max_replica_batch_size)."
        return BatchBound(given // unit, reason)
    if of_data is not None:
        shared = f", for {plan.num_replicas} replicas" if plan.num_replicas > 1 else ""
        return BatchBound(
            of_data // unit, f"No larger batch is possible: an epoch has {num_examples:,} examples{shared}."
        )
    return BatchBound(
        _MOST // unit, f"No larger batch is tried: it would have more than {_MOST:,} examples per replica."
    )
