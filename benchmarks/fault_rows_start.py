"""Faults when workers start, and a shortage of memory."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.benchmarks.fault_launch import PROGRAM, launch
from tfaccel.benchmarks.fault_row import FaultRow, Lab, Trial
from tfaccel.benchmarks.fault_rows_workers import OPTIONS, judged
from tfaccel.processes.child import Child
from tfaccel.processes.launched import DONE
from tfaccel.processes.local_cluster import cluster_environments

_LIMIT_SECONDS = 300.0
_WAIT_SECONDS = 5.0
_LONG = {"pause": 0.5}  # so that the duplicate comes while it runs
# Activations of 173 MB per layer; the limit comes in the second epoch, when all threads of TensorFlow have started:
# one that cannot be started aborts the process.
_WIDE = {"plain": True, "width": 150_000, "batch_size": 288, "epochs": 4, "checkpoint_interval": 1}


@dataclass(frozen=True)
class _Ended:
    """A worker that has ended: its status, its lines, and the seconds from asking to train to its error."""

    status: int
    lines: list[str]
    seconds: float

    @property
    def error(self) -> str:
        """The line of its error."""
        return next((line for line in reversed(self.lines) if line.startswith("tfaccel.errors.")), "")


class _Worker(Child):
    """A worker that no launcher watches."""

    def __init__(self, run_dir: Path, options: dict[str, Any], environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", PROGRAM, str(run_dir), json.dumps(options)]
        super().__init__(command, environment=environment)

    def lines(self) -> list[str]:
        """What it has written so far."""
        return self.output(None).splitlines()

    def wait_for(self, begin: str) -> str:
        """The first line that begins so; "" if it ends before."""
        deadline = time.monotonic() + _LIMIT_SECONDS
        while time.monotonic() < deadline:
            has_ended = self.process.poll() is not None
            for line in self.lines():
                if line.startswith(begin):
                    return line
            if has_ended:
                break
            time.sleep(0.05)
        return ""

    def ended(self, told_at: float) -> _Ended:
        """Waits for its end; `told_at` is when its error was there."""
        status, asked = self.process.wait(_LIMIT_SECONDS), self.wait_for("asked ")
        return _Ended(status, self.lines(), told_at - float(asked.split()[1]) if asked else float("inf"))


def _ended(workers: Sequence[_Worker]) -> list[_Ended]:
    try:
        told_at = []
        for worker in workers:
            worker.wait_for("tfaccel.errors.")
            told_at.append(time.time())
        return [worker.ended(told) for worker, told in zip(workers, told_at, strict=True)]
    finally:
        for worker in workers:
            worker.end()


def _duplicate(lab: Lab, folder: Path) -> Trial:
    """A second worker of the same index, while both workers train."""
    usual, environments = lab.usual(2, OPTIONS), cluster_environments(2)
    workers = [_Worker(folder / "run", _LONG, one) for one in environments]
    for worker in workers:
        worker.wait_for("begun ")
    victim = lab.chance.randrange(2)
    [second] = _ended([_Worker(folder / "other", OPTIONS, environments[victim])])
    both = _ended(workers)
    untouched = all(one.status == DONE and f"digest {usual.digest}" in one.lines for one in both)
    named = f"Worker {victim} cannot listen on its port" in second.error and "Another worker with this" in second.error
    right = untouched and named and second.status != DONE
    said = second.error if right else f"{second.status} {second.lines[-1:]}, {[one.lines[-2:] for one in both]}"
    return Trial(right, said, second.seconds)


def _port_taken(lab: Lab, folder: Path) -> Trial:
    """Another program takes the port of a worker between the launcher's choice and the worker's start."""
    usual = lab.usual(2, OPTIONS)
    found = launch(folder, 2, {**OPTIONS, "takes_port": lab.chance.randrange(2)})
    return judged(found, usual, "cannot listen on its port")


def _missing_peer(lab: Lab, folder: Path) -> Trial:
    here = lab.chance.randrange(2)
    environment = {**cluster_environments(2)[here], "TFACCEL_WORKER_WAIT_SECONDS": str(_WAIT_SECONDS)}
    [alone] = _ended([_Worker(folder / "run", {}, environment)])
    right = alone.status != DONE and f"Worker {1 - here} (127.0.0.1:" in alone.error
    right = right and f"did not connect within {_WAIT_SECONDS:g} seconds" in alone.error
    return Trial(right, alone.error or " | ".join(alone.lines[-3:]), alone.seconds - _WAIT_SECONDS)


def _different(lab: Lab, folder: Path) -> Trial:
    """Worker 1 has other settings, other code, or another version of a package."""
    kind = lab.chance.choice(["epochs", "the code of the model", "numpy"])
    options: dict[str, Any] = {"epochs": {"epochs": 7}, "the code of the model": {"width": 17}}.get(kind, {})
    environments = cluster_environments(2)
    if kind == "numpy":
        place = folder / "packages" / "numpy-0.0.1.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.0.1\n")
        environments[1]["PYTHONPATH"] = str(place.parent)
    ended = _ended([_Worker(folder / "run", ({}, options)[index], environments[index]) for index in range(2)])
    says = f"The workers do not agree: {kind} is "
    right = all(one.status != DONE and says in one.error for one in ended) and not (folder / "run").exists()
    errors = [one.error or " | ".join(one.lines[-3:]) for one in ended]
    return Trial(right, errors[0] if right else f"{kind}: {errors}", max(one.seconds for one in ended))


def _out_of_memory(lab: Lab, folder: Path) -> Trial:
    """The address space may grow by less than a step's activations."""
    found = launch(folder / "short", 1, {**_WIDE, "fault": [0, 37, "address_space"]}, restarts=0)
    whole = launch(folder / "whole", 1, _WIDE)
    results = [folder / name / "run" / "result.json" for name in ("short", "whole")]
    if not all(path.exists() for path in results):
        return Trial(False, f"status {found.status}, {whole.status}: {found.output}")
    short, usual = (json.loads(path.read_text()) for path in results)
    plan, reasons = short["plan"], dict(short["plan"]["reasons"])
    same = all(
        np.allclose(values, usual["history"][name], rtol=1e-4, atol=1e-5) for name, values in short["history"].items()
    )
    recorded = "ran out of memory" in reasons.get("accumulation_steps", "") and plan["accumulation_steps"] > 1
    right = found.status == DONE and found.once and same and recorded
    right = right and plan["global_batch_size"] == usual["plan"]["global_batch_size"]
    return Trial(right, f"accumulation_steps={plan['accumulation_steps']}: {reasons.get('accumulation_steps')}")


ROWS = {
    "out_of_memory": FaultRow(
        "out of memory (RLIMIT_AS)",
        "smaller replica batches, the same global batch and result, recorded",
        _out_of_memory,
        num_trials=1,
    ),
    "duplicate_worker": FaultRow(
        "a second worker of the same index", "refused, the running job ends as usual", _duplicate, 1, notice_seconds=3.0
    ),
    "port_taken": FaultRow(
        "another program takes a worker's port", "named, all start again with other ports, bit-equal", _port_taken, 1
    ),
    "missing_peer": FaultRow(
        "a worker never starts", "bounded wait, named; seconds beyond the wait", _missing_peer, 2, notice_seconds=30.0
    ),
    "different_workers": FaultRow(
        "other settings, code or versions on a worker",
        "refused at the start on both, the difference named",
        _different,
        3,
        notice_seconds=30.0,
    ),
}
