"""The benchmark of pipeline stages: the same weights as one device, shares of memory, placement, and speed."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.processes.child import run_program

FAMILIES = ("mlp", "cnn", "lstm", "transformer")
STAGES_FIGURES = (*FAMILIES, "epoch")
MAX_DIFFERENCE, MAX_SHARE, MIN_PLACED, MAX_EPOCH = 0.0, 0.6, 1.0, 0.75
_PROGRAM = "tfaccel.benchmarks.stages_program"
_LIMIT_SECONDS = 900.0
_NUM_EPOCHS = 4
_STAGES = {"2 stages": 2, "1 device": 1}


def run_stages_suite(names: Sequence[str], options: SuiteOptions) -> Report:
    """Measures the named figures of `STAGES_FIGURES`; only "epoch" is repeated, with both programs in turn."""
    figures: list[Figure] = []
    raw: dict[str, Any] = {}
    for name in names:
        raw[name] = _epochs(options) if name == "epoch" else _family(name, options)
        figures += _epoch_figures(raw[name]) if name == "epoch" else _family_figures(name, raw[name])
    return Report(suite="stages", machine=options.machine(), measurements={}, figures=tuple(figures), raw=raw)


def _family(name: str, options: SuiteOptions) -> dict[str, Any]:
    found = {}
    for kind in ("parity", "shares"):
        options.progress(f"{name}: {kind}")
        found[kind] = _answer({"kind": kind, "family": name})
    return found


def _family_figures(name: str, found: dict[str, Any]) -> list[Figure]:
    figures = [
        Figure(
            name=name, quantity=f"difference of weights to one device: {how}", values=(value,), at_most=MAX_DIFFERENCE
        )
        for how, value in found["parity"].items()
    ]
    shares = found["shares"]
    share = "largest stage's share of weights and slots, 2 stages"
    placed = "operations of layers on their stage's device, forward and backward"
    return [
        *figures,
        Figure(name=name, quantity=share, values=(shares["bytes"],), at_most=MAX_SHARE),
        Figure(name=name, quantity=placed, values=(shares["placed"],), at_least=MIN_PLACED),
    ]


def _epochs(options: SuiteOptions) -> dict[str, dict[str, list[float]]]:
    """The median seconds and CPU seconds of epochs, for each repetition."""
    found: dict[str, dict[str, list[float]]] = {name: {"seconds": [], "CPU seconds": []} for name in _STAGES}
    num_epochs = max(1, round(options.scale * _NUM_EPOCHS))
    for number in range(1, options.repetitions + 1):
        for name, stages in _STAGES.items():
            options.progress(f"epoch: {name}, {number} of {options.repetitions}")
            answer = _answer({"kind": "epochs", "stages": stages, "epochs": num_epochs, "one_core_each": True})
            for unit, values in answer.items():
                found[name][unit].append(statistics.median(values))
    return found


def _epoch_figures(found: dict[str, dict[str, list[float]]]) -> list[Figure]:
    stages, one = found.values()
    ratios = {
        unit: tuple(after / before for after, before in zip(stages[unit], one[unit], strict=True)) for unit in one
    }
    what = "of an epoch, 2 stages of one core each / 1 device of one core, 4 micro-batches"
    return [
        Figure(name="epoch", quantity=f"seconds {what}", values=ratios["seconds"], at_most=MAX_EPOCH),
        Figure(name="epoch", quantity=f"CPU seconds {what}", values=ratios["CPU seconds"]),
        Figure(name="epoch", quantity="seconds, 1 device of one core", values=tuple(one["seconds"])),
    ]


def _answer(task: dict[str, Any]) -> Any:
    command = [sys.executable, "-m", _PROGRAM, json.dumps(task)]
    return json.loads(run_program(command, given=None, time_limit_seconds=_LIMIT_SECONDS).splitlines()[-1])
