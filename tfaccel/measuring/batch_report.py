"""`BatchOptions`, how batch sizes are searched, and `BatchReport`: those tried, the largest, and the fastest."""

from __future__ import annotations

from tfaccel.errors import PlanError
from tfaccel.measuring.memory_estimate import mebibytes
from tfaccel.measuring.report import Candidate
from tfaccel.planning.option_checks import check_seed
from tfaccel.planning.plan import Plan
from tfaccel.records import Record, SavedRecord
from tfaccel.short_repr import noun

INTERRUPTED = "It was interrupted."
_MOST = 2**24  # micro-batch: there is no end to it where neither memory, nor data, nor the user limits it


@noun
class BatchTrial(Record):
    """A batch size, and what was measured of it.

    Args:
        candidate: the plan with this batch size, and its windows, peak memory and cause of failure.
        fits: whether training stayed within the memory limit, head-room included; None if it failed for another reason.
        estimated_bytes: peak memory that was expected; None if it was not.
        was_tried: False if the estimate ruled it out.
        relative_speed: its examples per second / those of the report's `baseline`, by windows that ran in turn: the
            product of the ratios to the fastest size so far (`candidate.speedup`) along the way. None if it was not
            timed.
    """

    candidate: Candidate
    fits: bool | None
    estimated_bytes: int | None = None
    was_tried: bool = True
    relative_speed: float | None = None

    @property
    def replica_batch_size(self) -> int:
        """Examples per replica and optimizer step."""
        return self.candidate.plan.replica_batch_size


@noun
class BatchReport(SavedRecord):
    """What `find_batch_size` found.

    Args:
        workload: the workload's name.
        trials: in ascending order of their batch sizes.
        memory_limit_bytes: memory that one process, or one GPU, may use.
        head_room: the fraction of it that is to stay free.
        seconds: how long it took.
        stopped_because: why nothing more was tried.
        complete: False if time, the user, or a failure for another reason than memory ended it early.
        fastest: the replica batch size with the most examples per second, compared window by window; of two that
            differ by less than 2 %, the smaller. None if none was timed.
        baseline: the replica batch size whose `relative_speed` is 1: the first one that was timed.

    Example:
        >>> from tfaccel.planning.plan import Plan
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> trial = BatchTrial(candidate=Candidate(plan=plan, axis="batch 32"), fits=True)
        >>> report = BatchReport(workload="made_up", trials=(trial,), memory_limit_bytes=2**30, seconds=1.0)
        >>> report.largest, report.fastest, BatchReport.from_json(report.to_json()) == report
        (32, None, True)
    """

    _derived = ("largest", "recommendation")
    _ignores_others = True

    workload: str
    trials: tuple[BatchTrial, ...]
    memory_limit_bytes: int | None
    head_room: float = 0.1
    seconds: float
    stopped_because: str = ""
    complete: bool = True
    fastest: int | None = None
    baseline: int | None = None

    @property
    def headings(self) -> tuple[str, ...]:
        """The columns of `rows`."""
        speed = "speed" if self.baseline is None else f"speed ({self.baseline:,} = 1)"
        return ("replica batch", "global batch", "examples/s", speed, "spread", "memory", "outcome")

    @property
    def was_interrupted(self) -> bool:
        """Whether the user ended the search."""
        return self.stopped_because == INTERRUPTED

    @property
    def largest(self) -> int | None:
        """The largest replica batch size that fits; None if none does."""
        return max((one.replica_batch_size for one in self.trials if one.fits), default=None)

    @property
    def recommendation(self) -> str:
        """What to use, in a sentence or two."""
        if self.largest is None:
            return "No batch size fits. Use a smaller model, or a device with more memory."
        if self.fastest is None:
            return f"At most {self.largest:,} examples per replica fit. Throughput was not measured."
        size = self.fastest
        plan = next(one.candidate.plan for one in self.trials if one.replica_batch_size == size)
        text = f"Use --global_batch_size={plan.global_batch_size}: {size:,} examples per replica train fastest"
        largest = self.largest
        return f"{text}; at most {largest:,} fit." if largest > size else f"{text}, and no more fit or were tried."

    def rows(self) -> list[list[str]]:
        """A table with a row for each batch size; `headings` are its columns."""
        return [self._row(trial) for trial in self.trials]

    def _row(self, trial: BatchTrial) -> list[str]:
        candidate = trial.candidate
        rate, memory = candidate.examples_per_second, candidate.peak_bytes
        outcome = candidate.failure or candidate.rejection or ("fits" if trial.fits else "does not fit")
        if trial.replica_batch_size == self.fastest:
            outcome += ", fastest"
        if trial.replica_batch_size == self.largest:
            outcome += ", largest"
        return [
            f"{trial.replica_batch_size:,}",
            f"{candidate.plan.global_batch_size:,}",
            "" if rate is None else f"{rate:,.0f}",
            "" if trial.relative_speed is None else f"{trial.relative_speed:.2f}",
            "" if rate is None else f"{100 * candidate.spread:.0f} %",
            "" if memory is None else mebibytes(memory),
            outcome,
        ]


@noun(error=PlanError)
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


def batch_bound(plan: Plan, options: BatchOptions, num_examples: int | None) -> tuple[int, str]:
    """The largest batch that the data and the user allow.

    Args:
        plan: the plan whose batch size varies: a replica batch is a multiple of its accumulation steps.
        options: how to search.
        num_examples: in an epoch; None if unknown.

    Returns:
        Its micro-batch size, per replica and accumulation step, and why there is no larger one, as a sentence.

    Raises:
        PlanError: if not even the smallest batch is allowed.

    Example:
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> batch_bound(plan, BatchOptions(), 96)
        (96, 'No larger batch is possible: an epoch has 96 examples.')
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
        return given // unit, f"No larger batch was allowed: max_replica_batch_size={given} (--max_replica_batch_size)."
    if of_data is not None:
        shared = f", for {plan.num_replicas} replicas" if plan.num_replicas > 1 else ""
        return of_data // unit, f"No larger batch is possible: an epoch has {num_examples:,} examples{shared}."
    return _MOST // unit, f"No larger batch is tried: it would have more than {_MOST:,} examples per replica."
