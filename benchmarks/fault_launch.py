"""Launches the program of the benchmark of faults, and injects a fault from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfaccel.errors import RunDirError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.launching.local_launcher import launch_local
from tfaccel.launching.local_worker import LaunchOptions
from tfaccel.processes.child import Child
from tfaccel.training.run.checkpoint_files import checkpoints, load_newest

PROGRAM = "tfaccel.benchmarks.faults_program"
_POLL_SECONDS = 0.05
_LIMIT_SECONDS = 1800.0
_COMMAND_SECONDS = 300.0
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"  # with it, commands do not filter TensorFlow's notes


@dataclass(frozen=True)
class Running:
    """Workers that train.

    Attributes:
        pids: the process id of each.
        run_dir: their run directory.
    """

    pids: tuple[int, ...]
    run_dir: Path


Injection = Callable[[Running], Any]


@dataclass(frozen=True)
class Launch:
    """What came of one launch.

    Attributes:
        status: the exit status.
        digest: of losses and weights; "" if the run did not end.
        once: whether each epoch has seen each example exactly once.
        fault_at, noticed_at: times; None if there was none.
        seconds: of the whole launch.
        said: the launcher's lines.
        output: the workers' last lines.
        whole: whether every checkpoint that is left can be read.
    """

    status: int
    digest: str
    once: bool
    fault_at: float | None
    noticed_at: float | None
    seconds: float
    said: tuple[str, ...] = ()
    output: str = ""
    whole: bool = True

    @property
    def notice_seconds(self) -> float | None:
        """From the fault to the launcher's line."""
        return None if self.fault_at is None or self.noticed_at is None else self.noticed_at - self.fault_at

    @property
    def cause(self) -> str:
        """The launcher's line that names the cause and what it does."""
        return next((line for line in self.said if line.startswith("Worker ")), "")

    def ends_as(self, usual: Launch) -> bool:
        """Whether the run ended bit-equal to another, having seen each example once per epoch."""
        return self.status == 0 and bool(self.digest) and self.digest == usual.digest and self.once and self.whole


@dataclass
class _Watch:
    """Follows the logs of a launch in a folder, and injects a fault once all workers train."""

    folder: Path
    num_workers: int
    inject: Injection
    fault_at: float | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Waits for the workers, and injects; ends them when the launch takes too long, so that it ends in any case."""
        ends_at = time.monotonic() + _LIMIT_SECONDS
        while len(pids := self._pids()) < self.num_workers:
            if self.stop.wait(_POLL_SECONDS) or time.monotonic() > ends_at:
                return
        began = time.time()
        self.fault_at = self.inject(Running(tuple(pids), self.folder / "run")) or began
        while not self.stop.wait(_POLL_SECONDS):
            if time.monotonic() > ends_at:
                for pid in self._pids():
                    send(pid, signal.SIGKILL)

    def _pids(self) -> list[int]:
        lines = read_lines(self.folder / "logs")
        return [int(line.split()[1]) for line in lines if line.startswith("begun ")]


def launch(
    folder: Path, num_workers: int, options: dict[str, Any], *, inject: Injection | None = None, restarts: int = 3
) -> Launch:
    """Runs the program as workers, to the end.

    Args:
        folder: for the run directory and the logs.
        num_workers: how many.
        options: of the program.
        inject: does something to the workers once all of them train; returns when it did, by `time.time`.
        restarts: at most.
    """
    said: list[tuple[float, str]] = []
    began = time.time()
    watch = _Watch(folder, num_workers, inject or (lambda running: None))
    thread = threading.Thread(target=watch.run, daemon=True)
    thread.start()
    status = launch_local(
        [sys.executable, "-m", PROGRAM, str(folder / "run"), json.dumps(options)],
        LaunchOptions(num_workers=num_workers, shows_output=False, max_restarts=restarts),
        hardware=detect_hardware(),
        folder=folder / "logs",
        on_event=lambda text: said.append((time.time(), text)),
    )
    watch.stop.set()
    thread.join()
    return _found(folder, status, said, None if inject is None else watch.fault_at, began)


def _found(folder: Path, status: int, said: list[tuple[float, str]], fault_at: float | None, began: float) -> Launch:
    lines = read_lines(folder / "logs")
    digests = {line.split()[1] for line in lines if line.startswith("digest ")}
    faults = [float(line.split()[1]) for line in lines if line.startswith("fault ")]
    noticed = [at for at, text in said if text.startswith("Worker ")]
    return Launch(
        status=status,
        digest=digests.pop() if len(digests) == 1 else "",
        once="once True" in lines and "once False" not in lines,
        fault_at=faults[0] if faults else fault_at,
        noticed_at=noticed[0] if noticed else None,
        seconds=time.time() - began,
        said=tuple(text for _, text in said),
        output="\n".join(line[:500] for line in lines[-12:]),
        whole=are_whole(folder / "run" / "checkpoints"),
    )


def send(pid: int, number: int) -> None:
    """Sends a signal to a process, unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def are_whole(folder: Path) -> bool:
    """Whether every checkpoint in a folder can be read, alone in a folder of links."""
    for path in checkpoints(folder):
        alone = folder.parent.parent / f"alone-{path.name}"
        alone.mkdir(exist_ok=True)
        link = alone / path.name
        link.unlink(missing_ok=True)
        link.symlink_to(path)
        try:
            load_newest(alone)
        except RunDirError:
            return False
    return True


def read_lines(logs: Path) -> list[str]:
    """The lines of all workers' logs."""
    return [line for log in sorted(logs.glob("*.log")) for line in log.read_text(errors="replace").splitlines()]


def get_result(folder: Path) -> dict[str, Any]:
    """What the run in a launch's folder has written as its result; empty if it did not end."""
    path = folder / "run" / "result.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def run_command(*line: str) -> tuple[int, str]:
    """The exit status of a command of tfaccel, and what it says."""
    with Child([sys.executable, "-m", "tfaccel.scripts.main", *line], environment={_LOG_LEVEL: None}) as child:
        return child.process.wait(_COMMAND_SECONDS), child.output()
