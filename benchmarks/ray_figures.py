"""Two workers under Ray, compared with two that `tfaccel launch` starts itself: their speed, and their start."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from tfaccel.benchmarks.choice_tasks import FAMILIES
from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.planning.plan import Plan
from tfaccel.processes.child import run_program

MIN_SPEED = 0.97
_PROGRAM = "tfaccel.benchmarks.workers_program"
_FAMILY, _NUM_WINDOWS, _NUM_STEPS = "cnn", 6, 20
_LIMIT_SECONDS = 900.0
_LAUNCHERS = {"local": (), "ray": ("--engine=ray", "--cores_per_worker=1", "--wait_seconds=600")}

Runs = dict[str, list[dict[str, float]]]


def ray_is_missing(options: SuiteOptions) -> bool:
    """Whether Ray is not installed, which is then said in a line."""
    missing = find_spec("ray") is None
    if missing:
        options.progress("ray: left out, since Ray is not installed: pip install 'tfaccel[ray]'")
    return missing


def ray_runs(options: SuiteOptions) -> Runs:
    """The seconds from launch to the end of the first step, and steps per second, of both launchers in turn."""
    found: Runs = {name: [] for name in _LAUNCHERS}
    for number in range(1, options.repetitions + 1):
        for name, runs in found.items():
            options.progress(f"ray: {name} launcher, {number} of {options.repetitions}")
            runs.append(_run(name, max(1, round(options.scale * _NUM_STEPS))))
    return found


def _run(launcher: str, num_steps: int) -> dict[str, float]:
    size = FAMILIES[_FAMILY].global_batch_size
    plan = Plan(
        strategy="multi_worker_mirrored", devices=("CPU:0",), num_workers=2, global_batch_size=size, onednn=True
    )
    task: dict[str, Any] = {"family": _FAMILY, "plan": plan.to_json(), "started": time.time()}
    task |= {"num_windows": _NUM_WINDOWS, "num_steps": num_steps}
    with tempfile.TemporaryDirectory(prefix="tfaccel-") as folder:
        launch = [sys.executable, "-m", "tfaccel.scripts.main", "launch", "--num_workers=2", "--quiet"]
        # Under Ray, the workers look for what is new in the run directory.
        program = [sys.executable, "-m", _PROGRAM, json.dumps(task), f"--run_dir={folder}/run"]
        command = [*launch, *_LAUNCHERS[launcher], f"--log_dir={folder}/logs", "--", *program]
        output = run_program(command, environment={"RAY_ADDRESS": None}, time_limit_seconds=_LIMIT_SECONDS)
    line = json.loads(next(line for line in output.splitlines() if line.startswith("[0] {"))[4:])
    rate = statistics.median(line["examples_per_second"]) / size
    return {"steps_per_second": rate, "start_seconds": sum(line["seconds"].values())}


def ray_figures(found: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Figure]:
    """The figures, from what `ray_runs` has measured.

    Example:
        >>> one = {"steps_per_second": 10.0, "start_seconds": 20.0}
        >>> [figure.values for figure in ray_figures({"local": [one], "ray": [{**one, "start_seconds": 35.0}]})]
        [(1.0,), (15.0,)]
    """
    pairs = list(zip(found["local"], found["ray"], strict=True))
    return [
        Figure(
            name="ray",
            quantity="CNN, steps/s of two workers under Ray / under `tfaccel launch`",
            values=tuple(ray["steps_per_second"] / local["steps_per_second"] for local, ray in pairs),
            at_least=MIN_SPEED,
        ),
        Figure(
            name="ray",
            quantity="seconds from launch to the end of the first step, beyond those of `tfaccel launch`",
            values=tuple(ray["start_seconds"] - local["start_seconds"] for local, ray in pairs),
        ),
    ]
