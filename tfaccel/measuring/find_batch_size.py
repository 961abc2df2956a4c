"""`find_batch_size`: the largest batch that fits into memory, and the one that trains the most examples per second."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from tfaccel.errors import PlanError, WorkloadError, in_one_line
from tfaccel.hardware.cpu import free_memory_bytes
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Hardware
from tfaccel.hardware.machine import Machine
from tfaccel.measuring.batch_report import INTERRUPTED, BatchOptions, BatchReport, BatchTrial, batch_bound
from tfaccel.measuring.candidate_child import CandidateChild, CandidateFailed, CandidateServers
from tfaccel.measuring.duel import MIN_GAIN, get_rate, steps_of_window
from tfaccel.measuring.estimate_memory import device_bytes
from tfaccel.measuring.report import Candidate
from tfaccel.measuring.workload_task import make_task
from tfaccel.planning.candidates import default_plan, taken_fields
from tfaccel.planning.compile_arguments import data_after_model
from tfaccel.planning.load_workload import given_workload
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload

_PROBED_STEPS = 3
_ROUNDS = 4
_GRANULARITY = 8  # bisection ends when the step is an eighth of the size
_MARGIN = 1.1  # an expectation from smaller batches may be this much too low

_LOGGER = logging.getLogger(__name__)

OnTrial = Callable[[BatchTrial], None]


@data_after_model
def find_batch_size(
    workload: Any,
    x: Any = None,
    y: Any = None,
    *,
    search: BatchOptions | None = None,
    hardware: Hardware | None = None,
    on_trial: OnTrial = lambda trial: None,
    **options: Any,
) -> BatchReport:
    """Finds the largest replica batch that fits into memory, and the one that trains the most examples per second.

    Each batch size trains for some steps in a process of its own, so that running out of memory is a recorded result:
    first the plan's, then twice as many, until memory or the data end; then the sizes between the largest that fits and
    the smallest that does not. A size that fits and the fastest so far run in turn, window by window, as long as memory
    is enough for both. On CPUs the peak resident size of the process counts, on GPUs TensorFlow's statistics; a CPU
    process that reaches the limit is ended. Nothing that is passed in is trained or changed.

    Args:
        workload: what to train: a `Workload`, a recipe's name, an import path, or a function, as for `tfaccel.train`.
        x, y: data, if `workload` is a model or a function that builds one.
        search: how to search; None for at most five minutes, and all available memory but 10 %.
        hardware: the machine; None to detect it.
        on_trial: called with each batch size once it has been measured.
        **options: plan fields, whose values stay fixed (`global_batch_size` is where the search begins); and whatever
            `tfaccel.train` takes to make a workload from `workload`, `x` and `y`.

    Raises:
        PlanError: if a fixed field cannot run here, an epoch has fewer examples than the smallest batch, or the first
            batch size fails for another reason than memory. If a later one does, the report names it.
        WorkloadError: if the workload cannot be made or sent to another process, or its data come in batches of a fixed
            size.

    Example:
        >>> import keras, numpy as np
        >>> def build_model():
        ...     return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> x = np.ones((64, 4))
        >>> report = find_batch_size(build_model, x, x[:, :1], loss="mse", batch_size=64)
        >>> report.largest
        64
    """
    fixed = taken_fields(options, hardware=hardware)
    made = given_workload(workload, x, y, **options)
    _check_batches(made)
    hardware = hardware or detect_hardware()
    plan = default_plan(hardware, made, **fixed)
    if plan.num_workers > 1:
        raise PlanError(
            f"The batch size is searched in one process. Received: num_workers={plan.num_workers}. Search on one "
            "worker: its largest replica batch fits on all of the same kind."
        )
    search = search or BatchOptions()
    search = replace(search, memory_limit_bytes=_limit(search, plan, hardware))
    task = make_task(workload, options, made=made, seed=search.seed)
    found = BatchSearch(made.name, plan, search, num_examples=made.num_train_examples, on_trial=on_trial)
    try:
        with CandidateServers() as servers:
            found.run(servers, task)
    except KeyboardInterrupt:
        if not found.report().trials:
            raise
    report = found.report()
    if not report.trials:
        raise PlanError(f"budget_seconds={search.budget_seconds:g} is too small to try a batch size.")
    return report


def _check_batches(workload: Workload) -> None:
    """Raises WorkloadError for data whose batches have a fixed size."""
    size = getattr(workload.train_data, "batch_size", None)
    if size is not None:
        what = getattr(workload.train_data, "what", "dataset")
        raise WorkloadError(
            f"The {what} of {workload.name} has batches of {size} rows, which a search cannot change. Give arrays, or "
            "train_data(global_batch_size, *, seed, epoch) that makes batches of any size."
        )


def _limit(search: BatchOptions, plan: Plan, hardware: Hardware) -> int | None:
    """The memory limit: the user's, but never more than is available."""
    free = free_memory_bytes(Machine.here()) if plan.devices[0].startswith("CPU") else None
    known = [search.memory_limit_bytes, plan.gpu_memory_limit_bytes, device_bytes(plan, hardware), free]
    return min((one for one in known if one is not None), default=None)


class SearchEnded(Exception):
    """The search ends before it has found out what fits; its text says why."""


class BatchSearch:
    """A search for the largest batch that fits and the fastest one.

    Args:
        name: the workload's name.
        plan: the plan whose batch size varies.
        options: how to search; the memory limit is known.
        num_examples: in an epoch; no larger batch is tried. None if unknown.
        on_trial: called with each batch size once it has been measured.

    Raises:
        PlanError: if not even the smallest batch is allowed.
    """

    def __init__(
        self, name: str, plan: Plan, options: BatchOptions, *, num_examples: int | None, on_trial: OnTrial
    ) -> None:
        self._name, self._plan, self._options, self._on_trial = name, plan, options, on_trial
        self._unit = plan.accumulation_steps  # a replica batch is a multiple of it
        self._most, self._why_no_more = batch_bound(plan, options, num_examples)  # examples of a micro-batch
        self._trials: dict[int, BatchTrial] = {}
        self._relative_speeds: dict[int, float] = {}  # of replica batch sizes; that of the first is 1
        self._best: CandidateChild | None = None
        self._best_runs = False
        self._longest_seconds = 0.0
        self._began = time.monotonic()
        self._stopped_because, self._complete = INTERRUPTED, False

    def run(self, servers: CandidateServers, task: dict[str, Any]) -> None:
        """Searches; what was measured is in `report` in any case.

        Raises:
            PlanError: if a batch size fails for another reason than memory before any could be measured.
        """
        self._servers = servers
        self._task = task
        try:
            self._search()
            self._complete = True
        except SearchEnded as end:
            self._stopped_because = str(end)
        finally:
            self._end_best()

    @property
    def _usable_bytes(self) -> int | None:
        limit = self._options.memory_limit_bytes
        return None if limit is None else int(limit * (1 - self._options.head_room))

    def _search(self) -> None:
        most, size = self._most, min(self._most, max(1, self._plan.micro_batch_size))
        fits, fails = 0, None
        while fails is None and size > fits:
            if self._try(size):
                fits, size = size, min(2 * size, most)
            elif fits:
                fails = size
            else:
                fails, size = size, size // 2
                while size and not self._try(size):
                    fails, size = size, size // 2
                fits = size
        while fails is not None and fits and fails - fits > max(1, fits // _GRANULARITY):
            middle = (fits + fails) // 2
            fits, fails = (middle, fails) if self._try(middle) else (fits, middle)
        if fits == most:
            self._stopped_because = self._why_no_more
        elif fits:
            self._stopped_because = "The next larger batch does not fit."
        else:
            self._stopped_because = "Not even the smallest batch fits."

    def _try(self, micro_batch_size: int) -> bool:
        """Trains some steps with a batch size, and times it beside the fastest one so far; whether it fits.

        Raises:
            SearchEnded: if the budget allows no other, or this one failed for another reason than memory.
            PlanError: the same, if nothing was measured before.
        """
        size = micro_batch_size * self._unit
        if size in self._trials:
            return bool(self._trials[size].fits)
        plan = replace(self._plan, global_batch_size=size * self._plan.num_replicas, reasons=())
        candidate = Candidate(plan=plan, axis=f"batch {size}")
        expected = self._expected_bytes(size)
        if expected is not None and self._usable_bytes is not None and expected > _MARGIN * self._usable_bytes:
            text = f"Not tried: {expected:,} bytes are expected, and {self._usable_bytes:,} are usable."
            failed = replace(candidate, failure=text)
            self._note(BatchTrial(candidate=failed, fits=False, estimated_bytes=expected, was_tried=False))
            return False
        began = time.monotonic()
        if self._options.budget_seconds - (began - self._began) < self._longest_seconds:
            raise SearchEnded(f"The time was spent (budget_seconds={self._options.budget_seconds:g}).")
        server, limit = self._servers.of(plan), self._options.limit_seconds
        task = {**self._task, "memory_limit_bytes": self._limit_beside_best(expected)}
        child = CandidateChild(server, task, plan, candidate.axis, limit_seconds=limit)
        try:
            child.build(_PROBED_STEPS)
            child.warm_up(_PROBED_STEPS)
            if self._fits(child):
                self._time(child)
        except CandidateFailed as error:
            if self._best_runs and error.kind == "memory":  # it had only what the best one left
                child.end()
                self._end_best()
                return self._try(micro_batch_size)
            fits = False if error.kind == "memory" else None
            self._note(BatchTrial(candidate=child.fail(str(error)), fits=fits, estimated_bytes=expected))
            if error.kind != "memory":
                self._end_at_failure(size, error)
            return False
        except BaseException:
            child.end()
            raise
        finally:
            self._longest_seconds = max(self._longest_seconds, time.monotonic() - began)
        if child is not self._best:
            child.end()
        self._note(BatchTrial(candidate=child.candidate, fits=self._fits(child), estimated_bytes=expected))
        return self._fits(child)

    def _end_at_failure(self, size: int, error: CandidateFailed) -> NoReturn:
        """Ends the search at a batch size of which nobody knows whether it fits."""
        cause = in_one_line(error).rstrip(".") + "."
        if error.kind == "time":
            cause += " Allow more with limit_seconds (--limit_seconds)."
        text = f"{size:,} examples per replica failed, but not for lack of memory: {cause}"
        if any(trial.fits for trial in self._trials.values()):
            raise SearchEnded(text)
        raise PlanError(f"{text} No other batch size was tried.") from error

    def _fits(self, child: CandidateChild) -> bool:
        """Whether a batch size has stayed within the usable memory so far."""
        return self._usable_bytes is None or (child.candidate.peak_bytes or 0) <= self._usable_bytes

    def _expected_bytes(self, size: int) -> int | None:
        """The peak memory of a larger batch, on the line through the two largest that were measured."""
        known = {
            one.replica_batch_size: one.candidate.peak_bytes
            for one in self._trials.values()
            if one.candidate.peak_bytes
        }
        below = sorted(one for one in known if one < size)[-2:]
        if len(below) < 2:
            return None
        low, high = below
        slope = max(0.0, (known[high] - known[low]) / (high - low))
        return round(known[high] + slope * (size - high))

    def _time(self, child: CandidateChild) -> None:
        """Times a batch size: in turn with the best one so far if both fit into memory, otherwise alone."""
        best = self._best
        if best is None or not self._best_runs:
            self._time_alone(child)
            return
        ratios = []
        num_steps, of_best = steps_of_window(child), steps_of_window(best)
        for _ in range(_ROUNDS):
            try:
                incumbent = get_rate(best.window(of_best), best.candidate.plan)
            except CandidateFailed as error:  # what was measured of it before still counts
                ended, timed = best.candidate.axis, child.candidate.axis
                _LOGGER.info("The process of %s ended while %s was timed: %s", ended, timed, error)
                self._end_best()
                self._time_alone(child)
                return
            ratios.append(get_rate(child.window(num_steps), child.candidate.plan) / incumbent)
        child.candidate = replace(child.candidate, speedup=statistics.median(ratios))
        size = best.candidate.plan.replica_batch_size
        self._trials[size] = replace(self._trials[size], candidate=best.candidate, fits=self._fits(best))
        self._note_speed(child, statistics.median(ratios))
        if self._fits(child) and (not self._fits(best) or _is_faster(child, statistics.median(ratios), best)):
            best.end()
            self._best = child  # which runs

    def _time_alone(self, child: CandidateChild) -> None:
        """Times a batch size, and compares it with earlier windows of the best one."""
        best, num_steps = self._best, steps_of_window(child)
        for _ in range(_ROUNDS):
            child.window(num_steps)
        rates = [one.candidate.examples_per_second if one else None for one in (child, best)]
        speedup = rates[0] / rates[1] if rates[0] and rates[1] else None
        child.candidate = replace(child.candidate, speedup=speedup)
        self._note_speed(child, speedup)
        if self._fits(child) and (speedup is None or _is_faster(child, speedup, best)):
            self._best, self._best_runs = child, True

    def _note_speed(self, child: CandidateChild, speedup: float | None) -> None:
        """Notes the speed of a size relative to the first one, given that relative to the best so far."""
        size = child.candidate.plan.replica_batch_size
        if self._best is None:
            if self._fits(child):
                self._relative_speeds = {size: 1.0}
        elif speedup is not None:
            best = self._relative_speeds.get(self._best.candidate.plan.replica_batch_size, 1.0)
            self._relative_speeds[size] = speedup * best

    def _limit_beside_best(self, expected: int | None) -> int | None:
        """The limit for a new process on the CPU; ends that of the best size if both might not fit together.

        On a GPU, TensorFlow reports that memory is spent, and the first process reserves all of it.
        """
        limit = self._options.memory_limit_bytes
        if not self._plan.devices[0].startswith("CPU"):
            self._end_best()
            return None
        if self._best is None or not self._best_runs or limit is None:
            return limit
        taken = self._best.candidate.peak_bytes or 0
        if taken + (2 * taken if expected is None else round(_MARGIN * expected)) > limit:
            self._end_best()
            return limit
        return limit - taken

    def _end_best(self) -> None:
        if self._best is not None and self._best_runs:
            self._best.end()
        self._best_runs = False

    def _note(self, trial: BatchTrial) -> None:
        trial = replace(trial, relative_speed=self._relative_speeds.get(trial.replica_batch_size))
        self._trials[trial.replica_batch_size] = trial
        self._on_trial(trial)

    def report(self) -> BatchReport:
        """What was found so far."""
        return BatchReport(
            workload=self._name,
            trials=tuple(self._trials[size] for size in sorted(self._trials)),
            memory_limit_bytes=self._options.memory_limit_bytes,
            head_room=self._options.head_room,
            seconds=time.monotonic() - self._began,
            stopped_because=self._stopped_because,
            complete=self._complete,
            baseline=next(iter(self._relative_speeds), None),
            fastest=self._best.candidate.plan.replica_batch_size if self._best and self._fits(self._best) else None,
        )


def _is_faster(child: CandidateChild, speedup: float, best: CandidateChild | None) -> bool:
    """Whether a batch size is faster than the best one; a larger one must be by more, since it makes fewer updates."""
    sizes = [one.candidate.plan.replica_batch_size for one in (child, best) if one is not None]
    return speedup > (1 + MIN_GAIN if sizes[0] == max(sizes) else 1 / (1 + MIN_GAIN))
