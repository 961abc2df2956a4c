"""Runs a command as several workers of this machine, and starts all of them again when one is lost."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfaccel.errors import LaunchError
from tfaccel.hardware.hardware import Hardware
from tfaccel.launching.attempt import Attempt, Outcome
from tfaccel.launching.found_command import found_command
from tfaccel.launching.launch_options import LaunchOptions
from tfaccel.launching.worker_places import worker_places
from tfaccel.processes.exit_status import DONE, INTERRUPTED, PERMANENT, RETRY

logger = logging.getLogger("tfaccel")

MAX_FAILURES_AT_A_STEP = 3


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"The folder for logs {folder} cannot be created: {error.strerror}.") from error
    started = time.strftime("%Y%m%d-%H%M%S")
    failures = _Failures(options.max_restarts)
    while True:
        number = failures.num_restarts + 1
        pinned = f", cores of each: {len(places[0].cores)}" if places[0].cores else ""
        on_event(f"attempt {number}: {options.num_workers} workers{pinned}; logs in {folder}")
        attempt = Attempt(
            command,
            places,
            options,
            folder=folder,
            number=number,
            started=started,
        )
        with _signals_passed_on(attempt, options.grace_seconds) as received:
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
            return _Decision(PERMANENT, "Starting again would not help.")
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


@contextlib.contextmanager
def _signals_passed_on(attempt: Attempt, grace_seconds: float) -> Iterator[list[int]]:
    """Passes SIGTERM and Ctrl-C on to the workers; ends them after the grace time, or at the second signal.

    Yields:
        The signals that were received.
    """
    received: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        received.append(number)
        if len(received) > 1:
            attempt.kill()
            return
        attempt.tell(number)
        timer = threading.Timer(grace_seconds, attempt.kill)
        timer.daemon = True
        timer.start()

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
