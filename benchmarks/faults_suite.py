"""The benchmark of faults: what is done to launched workers, how soon it is noticed, and whether the run ends as usual.

Each fault is real: a signal to a process, or an exception in a callback. The digest of losses and weights at the end
must be that of a run that was not disturbed.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tfaccel.benchmarks.faults_program import EPOCHS, STEPS_PER_EPOCH
from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.errors import TfaccelError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.launching.launch_options import LaunchOptions
from tfaccel.launching.local_launcher import launch_local
from tfaccel.processes.exit_status import DONE, PERMANENT

_PROGRAM = "tfaccel.benchmarks.faults_program"
_NUM_STEPS = EPOCHS * STEPS_PER_EPOCH


@dataclass(frozen=True)
class Fault:
    """What happens to which of how many workers.

    Args:
        num_workers: of the run.
        action: a signal's name, or "exception".
        notice_seconds: within how long the launcher must notice.
        ends_with: the exit status of the launch.
    """

    num_workers: int
    action: str
    notice_seconds: float
    ends_with: int = DONE


FAULTS = {
    "killed_alone": Fault(1, "SIGKILL", 5.0),
    "killed_of_two": Fault(2, "SIGKILL", 5.0),
    "stopped_of_two": Fault(2, "SIGSTOP", 30.0),
    "exception_of_two": Fault(2, "exception", 10.0, ends_with=PERMANENT),
}
FAULT_FIGURES = tuple(FAULTS)


@dataclass(frozen=True)
class Launch:
    """What came of one launch.

    Args:
        status: the exit status.
        digest: of losses and weights; "" if the run did not end.
        fault_at, noticed_at: times; None if there was none.
        seconds: of the whole launch.
        said: the launcher's lines.
    """

    status: int
    digest: str
    fault_at: float | None
    noticed_at: float | None
    seconds: float
    said: tuple[str, ...]


def run_faults_suite(names: Sequence[str], options: SuiteOptions) -> Report:
    """Runs the named faults (keys of `FAULTS`), each `repetitions` times at a random step of a random worker.

    Raises:
        TfaccelError: if a run that is not disturbed fails.
    """
    chance = random.Random(0)
    figures: list[Figure] = []
    raw = {}
    for name in names:
        fault = FAULTS[name]
        options.progress(f"{name}: a run that is not disturbed")
        usual = _launched(fault.num_workers, "none")
        if usual.status != DONE:
            raise TfaccelError(f"{name}: a run that was not disturbed ended with {usual.status}: {usual.said[-1:]}.")
        found = []
        for number in range(1, options.repetitions + 1):
            worker, step = chance.randrange(fault.num_workers), chance.randrange(1, _NUM_STEPS - STEPS_PER_EPOCH)
            options.progress(f"{name}: worker {worker} at step {step}, {number} of {options.repetitions}")
            found.append(_launched(fault.num_workers, f"{worker},{step},{fault.action}"))
        figures += fault_figures(name, fault, usual, found)
        raw[name] = [asdict(one) for one in (usual, *found)]
    return Report(suite="faults", machine=options.machine(), measurements={}, figures=tuple(figures), raw=raw)


def fault_figures(name: str, fault: Fault, usual: Launch, found: Sequence[Launch]) -> list[Figure]:
    """Whether each run ended as it must, how soon the fault was noticed, and the time that it cost."""
    as_usual = [one.digest == usual.digest if fault.ends_with == DONE else not one.digest for one in found]
    right = [float(one.status == fault.ends_with and same) for one, same in zip(found, as_usual, strict=True)]
    delays = [one.noticed_at - one.fault_at for one in found if one.noticed_at and one.fault_at]
    must = "ends bit-equal to a run that was not disturbed" if fault.ends_with == DONE else "ends with status 1"
    figures = [
        Figure(name=name, quantity=f"{must} (1 yes, 0 no)", values=tuple(right), at_least=1.0),
        Figure(
            name=name,
            quantity="seconds until it is noticed",
            values=tuple(delays) or (float("inf"),),
            at_most=fault.notice_seconds,
        ),
    ]
    if fault.ends_with == DONE:
        ratios = tuple(usual.seconds / one.seconds for one in found)
        figures.append(Figure(name=name, quantity="time without the fault / with it", values=ratios))
    return figures


def _launched(num_workers: int, fault: str) -> Launch:
    said: list[tuple[float, str]] = []
    began = time.time()
    with tempfile.TemporaryDirectory(prefix="tfaccel-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", _PROGRAM, str(folder / "run"), fault]
        status = launch_local(
            command,
            LaunchOptions(num_workers=num_workers, shows_output=False),
            hardware=detect_hardware(),
            folder=folder / "logs",
            on_event=lambda text: said.append((time.time(), text)),
        )
        lines = [line for log in sorted((folder / "logs").glob("*.log")) for line in log.read_text().splitlines()]
    digests = {line.split()[1] for line in lines if line.startswith("digest ")}
    faults = [float(line.split()[1]) for line in lines if line.startswith("fault ")]
    noticed = [at for at, text in said if text.startswith("Worker ")]
    return Launch(
        status,
        digests.pop() if len(digests) == 1 else "",
        faults[0] if faults else None,
        noticed[0] if noticed else None,
        time.time() - began,
        tuple(text for _, text in said),
    )
