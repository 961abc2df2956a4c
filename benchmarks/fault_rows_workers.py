"""Faults of workers that train: signals, a cut connection, an exception."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.cut_program import launch_and_cut
from tfaccel.benchmarks.fault_launch import Injection, Launch, Running, get_result, launch, send
from tfaccel.benchmarks.fault_row import FaultRow, Lab, Trial
from tfaccel.processes.launched import PERMANENT

OPTIONS = {"pause": 0.1}
_LARGE = {"pause": 0.1, "width": 700, "depth": 3}  # checkpoints of 12 MB
_TRAINING_SECONDS = 1.5
_SECOND_SIGNAL_SECONDS = 0.6


def _sent(number: int, victim: int, delay: float) -> Injection:
    def inject(running: Running) -> float:
        time.sleep(delay)
        send(running.pids[victim], number)
        return time.time()

    return inject


def _signal_trial(
    number: int, num_workers: int, says: str, options: dict[str, Any] = OPTIONS
) -> Callable[[Lab, Path], Trial]:
    """A signal to a random worker at a random moment of its training."""

    def trial(lab: Lab, folder: Path) -> Trial:
        usual = lab.usual(num_workers, options)
        victim, delay = lab.chance.randrange(num_workers), lab.chance.uniform(0, _TRAINING_SECONDS)
        found = launch(folder, num_workers, options, inject=_sent(number, victim, delay))
        return judged(found, usual, says.format(victim))

    return trial


def judged(found: Launch, usual: Launch, says: str) -> Trial:
    """A run must end as one that was not disturbed, and the launcher must say what was the matter."""
    right = found.ends_as(usual) and says in found.cause
    said = found.cause if right else f"status {found.status}: {' '.join(found.said)} {found.output}"
    return Trial(right, said, found.notice_seconds, usual.seconds / found.seconds)


def _during_a_save(lab: Lab, folder: Path) -> Trial:
    usual = lab.usual(1, _LARGE)

    def inject(running: Running) -> float:
        deadline = time.monotonic() + 60
        while not list((running.run_dir / "checkpoints").glob(".step_*")) and time.monotonic() < deadline:
            time.sleep(0.001)
        send(running.pids[0], signal.SIGTERM)
        return time.time()

    return judged(launch(folder, 1, _LARGE, inject=inject), usual, "Training was stopped by SIGTERM after step")


def _twice(lab: Lab, folder: Path) -> Trial:
    options = {**OPTIONS, "pause": 2.0}  # the steps in progress take longer than the second signal

    def inject(running: Running) -> float:
        began = time.time()
        time.sleep(lab.chance.uniform(0, 0.5))
        for _ in range(2):
            send(running.pids[0], signal.SIGTERM)
            time.sleep(_SECOND_SIGNAL_SECONDS)
        return began

    usual = lab.usual(1, OPTIONS)
    return replace(judged(launch(folder, 1, options, inject=inject), usual, "Worker 0 of 1 ended with"), ratio=None)


def _cut(lab: Lab, folder: Path) -> Trial:
    usual = lab.usual(2, OPTIONS)
    found = launch_and_cut(folder, OPTIONS)
    return judged(found, usual, "is lost: worker")


def _exception(lab: Lab, folder: Path) -> Trial:
    victim = lab.chance.randrange(2)
    found = launch(folder, 2, {"fault": [victim, lab.chance.randrange(1, 60), "exception"]})
    last = found.said[-1]
    once = last.count("ValueError: a mistake in a callback") == 1 and last.startswith("The end of the output of worker")
    right = found.status == PERMANENT and once and found.cause.startswith(f"Worker {victim} of 2 ")
    return Trial(right, found.cause if right else f"status {found.status}: {found.said}", found.notice_seconds)


def _straggler(lab: Lab, folder: Path) -> Trial:
    usual = lab.usual(2, {})
    victim = lab.chance.randrange(2)
    found = launch(folder, 2, {"slow": victim})
    if not found.ends_as(usual):
        return Trial(False, f"status {found.status}: {found.said} {found.output}")
    said = get_result(folder).get("straggler") or {}
    return Trial((said.get("worker"), said.get("phase")) == (victim, "compute"), f"worker {victim} was slow: {said}")


ROWS = {
    "killed_alone": FaultRow(
        "SIGKILL, one process, at a random moment",
        "ends bit-equal, each example once per epoch",
        _signal_trial(signal.SIGKILL, 1, "Worker 0 of 1 was killed by SIGKILL"),
        num_trials=20,
        notice_seconds=5.0,
    ),
    "killed_of_two": FaultRow(
        "SIGKILL of one of 2 workers",
        "noticed, all start again, bit-equal",
        _signal_trial(signal.SIGKILL, 2, "Worker {} of 2 was killed by SIGKILL"),
        notice_seconds=5.0,
    ),
    "stopped_of_two": FaultRow(
        "SIGSTOP of one of 2 workers",
        "noticed and named, all start again, bit-equal",
        _signal_trial(signal.SIGSTOP, 2, "Worker {} of 2 has given no sign of life"),
        notice_seconds=30.0,
    ),
    "cut_of_two": FaultRow(
        "the connection between 2 workers is cut",
        "noticed and named, all start again, bit-equal",
        _cut,
        notice_seconds=30.0,
    ),
    "term_alone": FaultRow(
        "SIGTERM to one process",
        "stops with a checkpoint; started again, bit-equal",
        _signal_trial(signal.SIGTERM, 1, "Training was stopped by SIGTERM after step"),
        notice_seconds=15.0,
    ),
    "term_of_two": FaultRow(
        "SIGTERM to one of 2 workers",
        "both stop at one step; started again, bit-equal",
        _signal_trial(signal.SIGTERM, 2, "Training was stopped by SIGTERM"),
        notice_seconds=15.0,
    ),
    "term_during_a_save": FaultRow(
        "SIGTERM while a checkpoint is written", "no half-visible checkpoint; started again, bit-equal", _during_a_save
    ),
    "term_twice": FaultRow(
        "SIGTERM twice", "ends at once, no half-visible checkpoint; started again, bit-equal", _twice
    ),
    "exception_of_two": FaultRow(
        "exception in a callback of one of 2 workers",
        "its traceback once, the other one stops, status 1",
        _exception,
        notice_seconds=10.0,
    ),
    "straggler": FaultRow(
        "one of 2 workers takes 50 ms more for each step",
        "the report names the worker and the phase; bit-equal",
        _straggler,
        num_trials=2,
    ),
}
