"""The benchmark of `optimizer_state`: weights, bytes of slots, and what two workers take, beside replicated slots."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.optimizer_state_program import SETTINGS
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.errors import TfaccelError
from tfaccel.processes.child import Environment
from tfaccel.processes.local_cluster import WorkerError, cluster_environments, run_workers

OPTIMIZER_STATE_FIGURES = ("weights", "weights_workers", "host", "bytes", "workers", "bfloat16")
MAX_BYTES, MAX_PEAK, MAX_STEP_TIME = 0.55, 0.85, 1.15
MAX_DIFFERENCE = {"adam_global_clipnorm": 1e-6}  # 0.0 for all others
_NUM_SEEDS, _NUM_EPOCHS = 3, 20
_PROGRAM = "tfaccel.benchmarks.optimizer_state_program"
_LIMIT_SECONDS = 1800.0
_REPLICATED, _SHARDED = "replicated", "sharded"
_SMALL: dict[str, Any] = {"width": 24, "num_layers": 2, "num_replicas": 2, "num_steps": 6}
_LARGE: dict[str, Any] = {**_SMALL, "width": 3600, "num_layers": 3}  # 99 MB of weights, in two large kernels


def run_optimizer_state_suite(names: Sequence[str], options: SuiteOptions) -> Report:
    """Measures the named figures (of `OPTIMIZER_STATE_FIGURES`)."""
    figures: list[Figure] = []
    raw: dict[str, Any] = {}
    for name in names:
        found = _MEASURED[name](name, options)
        raw[name] = found[0]
        figures += found[1]
    return Report(suite="optimizer_state", machine=options.machine(), measurements={}, figures=tuple(figures), raw=raw)


def _weights(name: str, options: SuiteOptions) -> tuple[Any, list[Figure]]:
    """The largest difference of a weight from those of replicated slots, after 24 steps."""
    other = "host" if name == "host" else _SHARDED
    task = {**_SMALL, "how": [_REPLICATED, other], "settings": list(SETTINGS)}
    options.progress(f"{name}: {len(SETTINGS)} optimizers")
    found = _on_workers(task)[0] if name == "weights_workers" else _in_a_process(task)
    figures = [
        Figure(
            name=name,
            quantity=f"{setting}: largest difference of a weight, {other} - replicated",
            values=(one["difference"],),
            at_most=MAX_DIFFERENCE.get(setting, 0.0),
        )
        for setting, one in found.items()
    ]
    return found, figures


def _bytes(name: str, options: SuiteOptions) -> tuple[Any, list[Figure]]:
    """Bytes of slots on a replica, of two."""
    task = {**_LARGE, "how": [_REPLICATED, _SHARDED], "settings": ["adam"], "num_steps": 1}
    options.progress(f"{name}: training")
    found = _in_a_process(task)
    runs = found["adam"]["runs"]
    ratio = runs[_SHARDED]["slot_bytes"] / runs[_REPLICATED]["slot_bytes"]
    quantity = "bytes of slots on a replica, 2 replicas, Adam, 99 MB of weights, sharded / replicated"
    return found, [Figure(name=name, quantity=quantity, values=(ratio,), at_most=MAX_BYTES)]


def _workers(name: str, options: SuiteOptions) -> tuple[Any, list[Figure]]:
    """Peak resident size and step time of two workers of one core each."""
    raw: list[dict[str, Any]] = []
    steps = max(1, round(_LARGE["num_steps"] * options.scale))
    for number in range(1, options.repetitions + 1):
        runs = {}
        for how in (_REPLICATED, _SHARDED):
            options.progress(f"{name}: {how}, {number} of {options.repetitions}")
            task = {**_LARGE, "how": [how], "settings": ["adam"], "num_steps": steps}
            runs[how] = [worker["adam"] for worker in _on_workers(task)]
        raw.append(runs)
    return raw, _worker_figures(name, raw)


def _worker_figures(name: str, raw: list[dict[str, Any]]) -> list[Figure]:
    peaks, times, same = [], [], []
    for runs in raw:
        each = {how: [worker["runs"][how] for worker in workers] for how, workers in runs.items()}
        peaks.append(max(b["peak_bytes"] / a["peak_bytes"] for a, b in zip(*each.values(), strict=True)))
        seconds = [max(statistics.median(worker["step_seconds"]) for worker in workers) for workers in each.values()]
        times.append(seconds[1] / seconds[0])
        same.append(float(len({worker["digest"] for workers in runs.values() for worker in workers}) == 1))
    what = "2 workers, Adam, 99 MB of weights"
    return [
        Figure(
            name=name,
            quantity=f"peak resident size of the same worker, the greater ratio, {what}, sharded / replicated",
            values=tuple(peaks),
            at_most=MAX_PEAK,
        ),
        Figure(
            name=name,
            quantity=f"step time, {what}, sharded / replicated",
            values=tuple(times),
            at_most=MAX_STEP_TIME,
        ),
        Figure(name=name, quantity="weights equal to the last bit (1: yes)", values=tuple(same), at_least=1.0),
    ]


def _bfloat16(name: str, options: SuiteOptions) -> tuple[Any, list[Figure]]:
    """Losses with slots in bfloat16, minus those in float32; the curves are in the raw data."""
    task = {"num_seeds": _NUM_SEEDS, "num_epochs": max(1, round(_NUM_EPOCHS * options.scale))}
    options.progress(f"{name}: {_NUM_SEEDS} seeds")
    found = _in_a_process(task)
    figures = []
    for part in ("loss", "val_loss"):
        pairs = zip(found["bfloat16"], found["float32"], strict=True)
        ends = tuple(one[part][-1] - other[part][-1] for one, other in pairs)
        quantity = f"{part} after {task['num_epochs']} epochs of AdamW, by seed, slots in bfloat16 - float32"
        figures.append(Figure(name=name, quantity=quantity, values=ends))
    return found, figures


def _in_a_process(task: dict[str, Any]) -> Any:
    return _run(task, [{"TF_CONFIG": None}])[0]


def _on_workers(task: dict[str, Any]) -> list[Any]:
    if len(os.sched_getaffinity(0)) < 2:
        raise TfaccelError("The benchmark of sharded slots needs two cores for its workers. Received: 1.")
    return _run(task, [{**one, "OMP_NUM_THREADS": "1"} for one in cluster_environments(2)])


def _run(task: dict[str, Any], environments: Sequence[Environment]) -> list[Any]:
    command = [sys.executable, "-m", _PROGRAM, json.dumps(task)]
    try:
        outputs = run_workers(command, environments=environments, time_limit_seconds=_LIMIT_SECONDS)
    except WorkerError as error:
        raise TfaccelError(f"The program of the benchmark failed. {error}") from error
    return [json.loads(output.stdout.splitlines()[-1]) for output in outputs]


_MEASURED = {
    **dict.fromkeys(("weights", "weights_workers", "host"), _weights),
    "bytes": _bytes,
    "workers": _workers,
    "bfloat16": _bfloat16,
}
