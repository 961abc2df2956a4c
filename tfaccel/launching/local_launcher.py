"""Runs a command as several workers of this machine, watches them, and starts all of them again when one is lost."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfaccel.errors import LaunchError
from tfaccel.hardware.hardware import Hardware
from tfaccel.launching.local_worker import LaunchedWorker, LaunchOptions, WorkerPlace, found_command, worker_places
from tfaccel.launching.waiting_workers import WaitingWorkers
from tfaccel.planning.compilation_cache import CompilationCache
from tfaccel.planning.plan_environment import XLA_FLAGS
from tfaccel.processes import heartbeat
from tfaccel.processes.child import Environment
from tfaccel.processes.launched import (
    ATTEMPT,
    DONE,
    INTERRUPTED,
    PERMANENT,
    RETRY,
    STARTED,
    can_be_retried,
    final_status,
)
from tfaccel.processes.local_cluster import cluster_environments

logger = logging.getLogger("tfaccel")

MAX_FAILURES_AT_A_STEP = 3
_POLL_SECONDS = 0.05
# For the other workers to end by themselves, with what they have to say: if the first one did nothing but lose another
# one, the cause is still to come.
_OTHERS_SECONDS, _CAUSE_SECONDS = 1.0, 4.0
_ENDING_SECONDS = 5.0  # for a worker that has raised an exception to end
_MISSED_BEATS = 4  # make a worker suspect when another one has lost it
_HIDDEN_GPUS = {"CUDA_VISIBLE_DEVICES": "-1"}


def launch_local(
    command: Sequence[str],
    options: LaunchOptions,
    *,
    hardware: Hardware,
    folder: Path,
    on_event: Callable[[str], None] = logger.info,
) -> int:
    """Runs a command as each worker of a cluster on this machine.

    All workers get the same command, and their cluster and index in `TF_CONFIG`, with free ports of 127.0.0.1. If one
    is killed, falls silent, or says by exit status 138 that it can be retried, all are ended and started again, and
    training continues from the last checkpoint. An exception, status 1, or bad input, status 2, is final. So are three
    failures in a row without a step more.

    Args:
        command: program and arguments: `tfaccel train ...`, or a script that calls `tfaccel.train` or `tfaccel.fit`.
        options: how many workers, and how they are treated.
        hardware: this machine.
        folder: for the workers' logs; it is created.
        on_event: called with a line of text when workers start, fail, or are started again.

    Returns:
        The exit status: 0 if all workers are done, 138 if starting again may succeed, 130 after Ctrl-C, otherwise 1.

    Raises:
        LaunchError: if the command does not exist, the machine has too few cores or GPUs, or the folder cannot be
            written.
    """
    found_command(command)
    places = worker_places(
        options.num_workers,
        hardware,
        cores_per_worker=options.cores_per_worker,
        gpus_per_worker=options.gpus_per_worker,
    )
    make_log_folder(folder)
    started = time.strftime("%Y%m%d-%H%M%S")

    def new_attempt(number: int) -> Attempt:
        pinned = f", cores of each: {len(places[0].cores)}" if places[0].cores else ""
        on_event(f"attempt {number}: {options.num_workers} workers{pinned}; logs in {folder}")
        return Attempt(command, places, options, folder=folder, number=number, started=started, waiting=waiting)

    waiting = WaitingWorkers(command if options.max_restarts else (), places, folder=folder, shows=options.shows_output)
    with contextlib.closing(waiting):
        return _repeated(new_attempt, options, on_event)


def _repeated(new_attempt: Callable[[int], Attempt], options: LaunchOptions, on_event: Callable[[str], None]) -> int:
    """Runs attempts until one ends well, or another one would not help; returns the exit status."""
    failures = _Failures(options.max_restarts)
    while True:
        attempt = new_attempt(failures.num_restarts + 1)
        received: list[int] = []
        with signals_noted(functools.partial(_pass_on, attempt, options.grace_seconds, received)):
            outcome = attempt.outcome()
        if outcome.status == DONE:
            return DONE
        if received:
            return _status_after(received[0], outcome)
        decision = failures.add(outcome)
        on_event(f"{outcome.cause} {decision.text}")
        if decision.status is not None:
            if outcome.last_words:
                on_event(f"The end of the output of worker {outcome.worker}:\n{outcome.last_words}")
            return decision.status


def make_log_folder(folder: Path) -> None:
    """Creates the folder for the workers' logs.

    Raises:
        LaunchError: if it cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"The folder for logs {folder} cannot be created: {error.strerror}.") from error


@dataclass(frozen=True)
class _Decision:
    """What to do after a failure: give up with a status, or, if it is None, start again."""

    status: int | None
    text: str


class _Failures:
    """Counts failures, and decides whether to start again."""

    def __init__(self, max_restarts: int) -> None:
        self._max_restarts = max_restarts
        self.num_restarts = 0
        self._furthest: int | None = None
        self._num_at_a_step = 0

    def add(self, outcome: Outcome) -> _Decision:
        """Decides after an attempt that failed."""
        if not outcome.can_be_retried:
            return _Decision(final_status(outcome.status), "Starting again would not help.")
        is_further = outcome.step is not None and (self._furthest is None or outcome.step > self._furthest)
        self._num_at_a_step = 1 if is_further else self._num_at_a_step + 1
        self._furthest = outcome.step if is_further else self._furthest
        if self._num_at_a_step >= MAX_FAILURES_AT_A_STEP:
            place = "before the first step" if self._furthest is None else f"at or before step {self._furthest}"
            return _Decision(PERMANENT, f"That was failure {self._num_at_a_step} in a row {place}: it is not repeated.")
        if self.num_restarts >= self._max_restarts:
            return _Decision(RETRY, f"All {self._max_restarts} restarts are spent (--max_restarts).")
        self.num_restarts += 1
        return _Decision(None, f"All workers start again, from the last checkpoint ({self._left}).")

    @property
    def _left(self) -> str:
        return f"restart {self.num_restarts} of {self._max_restarts}"


def _status_after(number: int, outcome: Outcome) -> int:
    """The status after a signal: 138 if the workers had time to save, or after SIGTERM."""
    if outcome.status == RETRY or number == signal.SIGTERM:
        return RETRY
    return INTERRUPTED


def _pass_on(attempt: Attempt, grace_seconds: float, received: list[int], number: int) -> None:
    """Passes a signal on to the workers, and ends them after the grace time; at the second signal, at once."""
    received.append(number)
    if len(received) > 1:
        attempt.kill()
        return
    attempt.tell(number)
    timer = threading.Timer(grace_seconds, attempt.kill)
    timer.daemon = True
    timer.start()


@contextlib.contextmanager
def signals_noted(note: Callable[[int], None]) -> Iterator[None]:
    """Within the block, calls `note` with SIGTERM and Ctrl-C instead of ending; no-op outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, lambda number, frame: note(number)) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Args:
        status: `DONE`, the exit status of the worker that failed first, or `RETRY` for one that fell silent.
        worker: its index; None if all are done, or ended because they were told to.
        cause: what happened to it, in a sentence; empty if all are done.
        last_words: the end of its output.
        step: the last step that any worker had finished; None if none had.
    """

    status: int
    worker: int | None = None
    cause: str = ""
    last_words: str = ""
    step: int | None = None

    @property
    def can_be_retried(self) -> bool:
        """Whether another attempt may succeed."""
        return can_be_retried(self.status)


class Attempt:
    """Starts all workers of a command, and watches them until they have ended.

    Args:
        command: program and arguments, the same for all.
        places: their cores and GPUs.
        options: how they are treated.
        folder: for their logs.
        number: 1 for the first attempt.
        started: when the first attempt began, as text.
        waiting: workers that may have loaded TensorFlow already.
    """

    def __init__(
        self,
        command: Sequence[str],
        places: Sequence[WorkerPlace],
        options: LaunchOptions,
        *,
        folder: Path,
        number: int,
        started: str,
        waiting: WaitingWorkers,
    ) -> None:
        self._waiting, self._prepared_at = waiting, 0.0
        self._silence_seconds = options.silence_seconds
        self._told: int | None = None
        self._killed = False
        self.workers: list[LaunchedWorker] = []
        self._programs: list[CompilationCache] = []  # for scripts, which TensorFlow starts before they call tfaccel
        marks = {ATTEMPT: str(number), STARTED: started, **(_HIDDEN_GPUS if options.gpus_per_worker == 0 else {})}
        clusters: Sequence[Environment] = [{"TF_CONFIG": None}]
        if len(places) > 1:
            clusters = cluster_environments(len(places))
        self._given: Environment = {**marks, "PYTHONUNBUFFERED": "1"}
        ready = waiting.take()
        try:
            for place, cluster in zip(places, clusters, strict=True):
                programs = CompilationCache.open(os.environ, kind="GPU" if place.gpus else "CPU")
                self._programs += [programs] if programs else []
                flags = {XLA_FLAGS: programs.flags(os.environ)} if programs else {}
                environment = {**marks, **cluster, **flags}
                if ready:
                    self.workers.append(ready.pop(0))
                    self.workers[-1].begin(environment)
                    continue
                self.workers.append(
                    LaunchedWorker(command, place, environment=environment, folder=folder, shows=options.shows_output)
                )
        except BaseException:
            self._end()
            raise

    def tell(self, number: int) -> None:
        """Passes a signal on to all workers."""
        self._told = number
        for worker in self.workers:
            worker.signal(number)

    def kill(self) -> None:
        """Ends all workers at once; `outcome` returns."""
        self._killed = True

    def outcome(self) -> Outcome:
        """Waits for the end of all workers. When one fails, the others are ended: they would wait for it forever."""
        try:
            while any(worker.status is None for worker in self.workers) and not self._killed:
                failed = [worker for worker in self.workers if worker.status not in (None, DONE)]
                if failed and self._told is None:
                    self._wait_for_others()
                    return self._of_failure()
                silent = self._silent(self._silence_seconds)
                if silent is not None and self._told is None:
                    return self._of_silence(*silent)
                self._prepare()
                time.sleep(_POLL_SECONDS)
            if self._told is None and all(worker.status == DONE for worker in self.workers):
                return Outcome(DONE)
            return self._of_failure() if self._told is None else self._of_signal()
        finally:
            self._end()

    def _prepare(self) -> None:
        """Once a second: starts the workers of the next attempt, if these ones train."""
        if self._told is None and time.monotonic() - self._prepared_at > heartbeat.SECONDS:
            self._prepared_at = time.monotonic()
            self._waiting.prepare([worker.last_heartbeat() for worker in self.workers], self._given)

    def _wait_for_others(self) -> None:
        """Lets the other workers notice: the one that failed first may have noticed another one's failure."""
        began = time.monotonic()
        while any(worker.status is None for worker in self.workers):
            ended = [worker.status for worker in self.workers if worker.status not in (None, DONE)]
            limit = _CAUSE_SECONDS if all(status == RETRY for status in ended) else _OTHERS_SECONDS
            if time.monotonic() - began > limit:
                return
            self._silent(self._silence_seconds)  # goes on counting
            time.sleep(_POLL_SECONDS)

    def _of_failure(self) -> Outcome:
        ended = [worker for worker in self.workers if worker.status not in (None, DONE)]
        causes = [worker for worker in ended if worker.status != RETRY]  # the others only lost a worker
        silent = self._silent(_MISSED_BEATS * heartbeat.SECONDS)
        if silent is not None and all((worker.status or 0) < 0 for worker in causes):  # TensorFlow may abort the others
            return self._of_silence(*silent)
        first = min(causes or ended, key=lambda worker: worker.ended_at or 0.0)
        index, step = first.place.index, self._last_step()
        self._end()
        said = first.last_sentence() if first.status == RETRY else ""
        cause = f"Worker {index} of {len(self.workers)} {first.how_it_ended()}{f': {said}' if said else '.'}"
        return Outcome(first.status or 0, index, cause, first.last_words(), step)

    def _silent(self, limit_seconds: float) -> tuple[LaunchedWorker, float] | None:
        """The worker that has been silent for longer, and for how long."""
        for worker in self.workers:
            seconds = worker.silent_seconds() if worker.status is None else 0.0
            beat = worker.last_heartbeat() if seconds > min(_ENDING_SECONDS, limit_seconds) else None
            if beat is not None and (beat.has_failed or seconds > limit_seconds):
                return worker, seconds
        return None

    def _of_silence(self, worker: LaunchedWorker, seconds: float) -> Outcome:
        index, beat = worker.place.index, worker.last_heartbeat()
        doing = f", while {beat.phase}" if beat is not None else ""
        fault = f"has given no sign of life for {seconds:.0f} seconds{doing}"
        has_failed = beat is not None and beat.has_failed  # TensorFlow waits for the other workers
        if has_failed:
            fault = f"raised an exception, and did not end within {seconds:.0f} s"
        cause = f"Worker {index} of {len(self.workers)} {fault}."
        step = self._last_step()
        self._end()
        return Outcome(PERMANENT if has_failed else RETRY, index, cause, worker.last_words(), step)

    def _of_signal(self) -> Outcome:
        """After a signal: done if all are; otherwise the status with which all ended, or the signal."""
        statuses = {worker.status for worker in self.workers if worker.status is not None}
        self._end()
        if statuses == {DONE}:
            return Outcome(DONE)
        number = self._told or signal.SIGKILL
        return Outcome(statuses.pop() if len(statuses) == 1 else -number, cause="The workers were told to stop.")

    def _last_step(self) -> int | None:
        beats = [worker.last_heartbeat() for worker in self.workers]
        return max((beat.step for beat in beats if beat is not None and beat.step is not None), default=None)

    def _end(self) -> None:
        for worker in self.workers:
            worker.end()
        for programs in self._programs:
            programs.close()
