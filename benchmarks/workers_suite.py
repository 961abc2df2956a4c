"""The benchmark of workers: two workers of one core each, compared with one worker, and how long they take to start."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfaccel.benchmarks.choice_tasks import FAMILIES
from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.ray_figures import ray_figures, ray_is_missing, ray_runs
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.benchmarks.workers_program import CORES
from tfaccel.errors import TfaccelError
from tfaccel.planning.plan import Plan
from tfaccel.processes.child import Environment, run_program
from tfaccel.processes.local_cluster import WorkerError, cluster_environments, run_workers

ARRANGED = ("mlp", "cnn", "lstm", "transformer")
WORKERS_FIGURES = ("weak", *ARRANGED, "start", "ray")
MIN_WEAK_SCALING = 1.7
MAX_START = 1.3
_PROGRAM = "tfaccel.benchmarks.workers_program"
_NUM_WINDOWS, _WINDOW_SECONDS = 4, 1.0
_LIMIT_SECONDS = 600.0
# About how long a step of each family takes, which sets the length of windows.
_STEP_SECONDS = {"mlp": 0.01, "cnn": 0.2, "lstm": 0.08, "transformer": 0.5}


@dataclass(frozen=True)
class Arrangement:
    """How a machine is used.

    Args:
        name: in tables.
        fields: of the plan.
        cores: of each worker.
    """

    name: str
    fields: Mapping[str, Any]
    cores: tuple[tuple[int, ...], ...]


def arrangements(first: int, second: int) -> tuple[Arrangement, ...]:
    """Three ways to use two cores; the first is the planner's."""
    replicas = {"strategy": "mirrored", "devices": ("CPU:0", "CPU:1"), "num_logical_cpus": 2}
    return (
        Arrangement("one worker on two cores", {}, ((first, second),)),
        Arrangement("two workers of one core", _TWO_WORKERS, ((first,), (second,))),
        Arrangement("two logical replicas", replicas, ((first, second),)),
    )


_TWO_WORKERS = {"strategy": "multi_worker_mirrored", "devices": ("CPU:0",), "num_workers": 2}


def run_workers_suite(names: Sequence[str], options: SuiteOptions) -> Report:
    """Measures the named figures.

    Args:
        names: of `WORKERS_FIGURES`.
        options: all arrangements of a figure run in turn, `repetitions` times; `scale` multiplies the steps of windows.

    Raises:
        TfaccelError: if there are less than two cores, or a worker fails.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise TfaccelError(f"The benchmark of workers needs two cores. Received: {len(cores)}.")
    figures: list[Figure] = []
    raw: dict[str, Any] = {}
    for name in names:
        if name == "start":
            raw[name] = _starts(options)
            figures += _start_figures(raw[name])
            continue
        if name == "ray":
            if not ray_is_missing(options):
                raw[name] = ray_runs(options)
                figures += ray_figures(raw[name])
            continue
        measure = _weak if name == "weak" else _arranged
        raw[name] = measure(name, (cores[0], cores[1]), options)
        figures += _weak_figures(raw[name]) if name == "weak" else _arranged_figures(name, raw[name])
    return Report(suite="workers", machine=options.machine(), measurements={}, figures=tuple(figures), raw=raw)


def _weak(name: str, cores: tuple[int, int], options: SuiteOptions) -> dict[str, list[float]]:
    """Examples per second of a CNN: one worker on one core, and two, each with the same number of rows."""
    size = FAMILIES["cnn"].global_batch_size
    one = Arrangement("one worker of one core", {}, ((cores[0],),))
    two = Arrangement(
        "two workers of one core", {**_TWO_WORKERS, "global_batch_size": 2 * size}, ((cores[0],), (cores[1],))
    )
    return _in_turn(name, "cnn", (one, two), options)


def _arranged(name: str, cores: tuple[int, int], options: SuiteOptions) -> dict[str, list[float]]:
    """Examples per second of a family with the same global batch."""
    return _in_turn(name, name, arrangements(*cores), options)


def _in_turn(name: str, family: str, each: Sequence[Arrangement], options: SuiteOptions) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {one.name: [] for one in each}
    num_steps = max(1, round(options.scale * _WINDOW_SECONDS / _STEP_SECONDS[family]))
    for number in range(1, options.repetitions + 1):
        for one in each:
            options.progress(f"{name}: {one.name}, {number} of {options.repetitions}")
            rates[one.name].append(_rate(family, one, num_steps))
    return rates


def _rate(family: str, arrangement: Arrangement, num_steps: int) -> float:
    task = {**_task(family, arrangement.fields), "num_windows": _NUM_WINDOWS, "num_steps": num_steps}
    command = [sys.executable, "-m", _PROGRAM, json.dumps(task)]
    clusters: Sequence[Environment] = [{"TF_CONFIG": None}]
    if len(arrangement.cores) > 1:
        clusters = cluster_environments(len(arrangement.cores))
    environments = [
        {**cluster, CORES: ",".join(map(str, own))} for cluster, own in zip(clusters, arrangement.cores, strict=True)
    ]
    try:
        outputs = run_workers(command, environments=environments, time_limit_seconds=_LIMIT_SECONDS)
    except WorkerError as error:
        raise TfaccelError(f"{family}: {arrangement.name} failed. {error}") from error
    return statistics.median(json.loads(outputs[0].stdout.splitlines()[-1])["examples_per_second"])


def _task(family: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    size = FAMILIES[family].global_batch_size
    base = {"strategy": "none", "devices": ("CPU:0",), "global_batch_size": size, "onednn": True}
    return {"family": family, "plan": Plan(**{**base, **fields}).to_json(), "started": time.time()}


def _weak_figures(rates: Mapping[str, Sequence[float]]) -> list[Figure]:
    one, two = rates.values()
    ratios = tuple(after / before for before, after in zip(one, two, strict=True))
    quantity = "CNN, examples/s of two workers of one core / one worker of one core, same batch per worker"
    return [Figure(name="weak", quantity=quantity, values=ratios, at_least=MIN_WEAK_SCALING)]


def _arranged_figures(name: str, rates: Mapping[str, Sequence[float]]) -> list[Figure]:
    (planned, before), *others = rates.items()
    return [
        Figure(
            name=name,
            quantity=f"examples/s of {other} / {planned}, same global batch",
            values=tuple(after / first for first, after in zip(before, values, strict=True)),
        )
        for other, values in others
    ]


def _starts(options: SuiteOptions) -> dict[str, list[dict[str, float]]]:
    """The seconds from `tfaccel launch` to the end of the first step, in parts, with one worker and with two."""
    found: dict[str, list[dict[str, float]]] = {"1": [], "2": []}
    for number in range(1, options.repetitions + 1):
        for count, starts in found.items():
            options.progress(f"start: {count} workers, {number} of {options.repetitions}")
            fields = _TWO_WORKERS if count == "2" else {}
            task = {**_task("cnn", fields), "num_windows": 0, "num_steps": 1}
            with tempfile.TemporaryDirectory(prefix="tfaccel-") as folder:
                launch = [sys.executable, "-m", "tfaccel.scripts.main", "launch", f"--num_workers={count}", "--quiet"]
                program = [sys.executable, "-m", _PROGRAM, json.dumps(task)]
                output = run_program(
                    [*launch, f"--log_dir={folder}", "--", *program], time_limit_seconds=_LIMIT_SECONDS
                )
            line = next(line for line in output.splitlines() if line.startswith("[0] {"))
            starts.append(json.loads(line[4:])["seconds"])
    return found


def _start_figures(found: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Figure]:
    totals = {count: [sum(parts.values()) for parts in starts] for count, starts in found.items()}
    ratios = tuple(two / one for one, two in zip(totals["1"], totals["2"], strict=True))
    quantity = "seconds from launch to the end of the first step, two workers / one"
    figures = [Figure(name="start", quantity=quantity, values=ratios, at_most=MAX_START)]
    for count, starts in found.items():
        for part in starts[0]:
            seconds = tuple(one[part] for one in starts)
            figures.append(Figure(name="start", quantity=f"{count} worker(s), seconds of: {part}", values=seconds))
    return figures
