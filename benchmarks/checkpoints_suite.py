"""The benchmark of checkpoints: how long a save blocks training, what regular ones cost, and how a run gets back."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.processes.child import run_program
from tfaccel.training.run.checkpoint_files import save_checkpoint

CHECKPOINT_FIGURES = ("blocking", "throughput", "resume")
MAX_BLOCKING, MIN_THROUGHPUT, MAX_LATE_RESUME = 0.3, 0.965, 1.1
INTERVAL = 100
_PROGRAM, _RESUME_PROGRAM = "tfaccel.benchmarks.checkpoints_program", "tfaccel.benchmarks.resume_program"
_NUM_ARRAYS, _ARRAY_BYTES = 25, 4 * 10**6  # 100 MB
_LIMIT_SECONDS = 900.0


def run_checkpoints_suite(names: Sequence[str], options: SuiteOptions) -> Report:
    """Measures the named figures of `CHECKPOINT_FIGURES`, with both programs in turn."""
    figures: list[Figure] = []
    raw: dict[str, Any] = {}
    if "blocking" in names:
        raw["blocking"] = _blocking(options)
        ratios = tuple(one["thread"] / one["at_once"] for one in raw["blocking"])
        quantity = "seconds that a save of 100 MB blocks training, in a thread / at once"
        figures.append(Figure(name="blocking", quantity=quantity, values=ratios, at_most=MAX_BLOCKING))
        for name, text in (("thread", "in a thread"), ("at_once", "at once")):
            seconds = tuple(one[name] for one in raw["blocking"])
            figures.append(Figure(name="blocking", quantity=f"seconds, {text}", values=seconds))
    if "throughput" in names:
        raw["throughput"] = _throughput(options)
        ratios = tuple(one["with"] / one["without"] for one in raw["throughput"])
        quantity = f"steps/s with a checkpoint every {INTERVAL} steps / without"
        figures.append(Figure(name="throughput", quantity=quantity, values=ratios, at_least=MIN_THROUGHPUT))
        milliseconds = tuple(1e3 / one["without"] for one in raw["throughput"])
        figures.append(Figure(name="throughput", quantity="milliseconds of a step", values=milliseconds))
    if "resume" in names:
        raw["resume"] = _resume(options)
        for name in raw["resume"][0]:
            times = [one[name] for one in raw["resume"]]
            ratios = tuple(late / early for early, late in times)
            quantity = f"seconds to the first batch, at 90 % / at 10 % of an epoch: {name}"
            figures.append(Figure(name="resume", quantity=quantity, values=ratios, at_most=MAX_LATE_RESUME))
            late = tuple(late for _, late in times)
            figures.append(Figure(name="resume", quantity=f"seconds, at 90 %: {name}", values=late))
    return Report(suite="checkpoints", machine=options.machine(), measurements={}, figures=tuple(figures), raw=raw)


def _blocking(options: SuiteOptions) -> list[dict[str, float]]:
    from tfaccel.training.run.checkpoints import CheckpointWriter

    arrays = {f"weight/{number}": np.random.default_rng(number).bytes(_ARRAY_BYTES) for number in range(_NUM_ARRAYS)}
    state = {name: np.frombuffer(content, "float32") for name, content in arrays.items()}
    found = []
    for number in range(1, options.repetitions + 1):
        options.progress(f"blocking: {number} of {options.repetitions}")
        with tempfile.TemporaryDirectory(prefix="tfaccel-") as folder:
            began = time.perf_counter()
            save_checkpoint(Path(folder, "at_once"), state, {"step": 1})
            at_once = time.perf_counter() - began
            writer = CheckpointWriter(Path(folder, "thread"))
            began = time.perf_counter()
            writer.write(state, {"step": 1})
            thread = time.perf_counter() - began
            writer.close()
        found.append({"at_once": at_once, "thread": thread})
    return found


def _resume(options: SuiteOptions) -> list[dict[str, list[float]]]:
    found = []
    for number in range(1, options.repetitions + 1):
        options.progress(f"resume: {number} of {options.repetitions}")
        command = [sys.executable, "-m", _RESUME_PROGRAM, json.dumps({"scale": options.scale})]
        found.append(json.loads(run_program(command, given=None, time_limit_seconds=_LIMIT_SECONDS).splitlines()[-1]))
    return found


def _throughput(options: SuiteOptions) -> list[dict[str, float]]:
    found = []
    for number in range(1, options.repetitions + 1):
        rates = {}
        for name, interval in (("with", INTERVAL), ("without", None)):
            options.progress(f"throughput: {name} checkpoints, {number} of {options.repetitions}")
            task = json.dumps({"interval": interval, "scale": options.scale})
            output = run_program([sys.executable, "-m", _PROGRAM, task], given=None, time_limit_seconds=_LIMIT_SECONDS)
            rates[name] = statistics.median(json.loads(output.splitlines()[-1]))
        found.append(rates)
    return found
