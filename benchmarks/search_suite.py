"""The benchmark of searches: `tfaccel search` with two workers, interleaved with Keras Tuner on the same trials."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.measurement import Measurement, Window
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.errors import TfaccelError
from tfaccel.processes.child import ProcessError, run_program

# Recipe -> epochs of a trial, which take about ten seconds on one core; the metric; and the tolerance of the best
# scores: a few of the test images, since rounding differs.
SEARCHES = {"image_classification": (32, "val_accuracy", 0.01)}
# The architecture is the same in all trials: if a few took ten times as long as others, the time of two workers would
# depend on which trial happens to come last.
FIXED = {"image_classification": {"width": 32, "num_blocks": 1}}
NUM_TRIALS, PARALLEL = 16, 2
MAX_TIME = 0.6  # relative to plain Keras Tuner
MAX_OVERHEAD = 0.15  # relative to the time of the epochs alone
_SEED = 1


def run_search_suite(names: Sequence[str], options: SuiteOptions) -> Report:
    """Measures searches of the named recipes.

    Args:
        names: the recipes.
        options: `scale` multiplies the epochs of a trial.

    Raises:
        TfaccelError: if a search fails, or the trials of the two differ.
    """
    figures: list[Figure] = []
    measurements: dict[str, tuple[Measurement, ...]] = {}
    for name in names:
        epochs, metric, tolerance = SEARCHES[name]
        epochs = max(3, round(epochs * options.scale))
        windows: dict[str, list[Window]] = {"Keras Tuner": [], "tfaccel search": []}
        found: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for repetition in range(options.repetitions):
            options.progress(f"{name}: Keras Tuner, {repetition + 1} of {options.repetitions}")
            plain, plain_window = _plain(name, epochs, metric)
            options.progress(f"{name}: tfaccel search, {repetition + 1} of {options.repetitions}")
            ours, our_window = _ours(name, epochs, metric)
            windows["Keras Tuner"].append(plain_window)
            windows["tfaccel search"].append(our_window)
            found.append((plain, ours))
            _check_same_trials(plain, ours)
        steps = NUM_TRIALS * epochs
        measurements[name] = tuple(
            Measurement(name=program, num_steps=steps, windows=tuple(own), warm_up_loss=own[0].loss)
            for program, own in windows.items()
        )
        figures += _figures(name, windows, found, tolerance)
    return Report(suite="search", machine=options.machine(), measurements=measurements, figures=tuple(figures))


def _figures(
    name: str, windows: dict[str, list[Window]], found: list[tuple[dict[str, Any], dict[str, Any]]], tolerance: float
) -> list[Figure]:
    pairs = list(zip(windows["tfaccel search"], windows["Keras Tuner"], strict=True))
    ratios = tuple(own.wall_seconds / plain.wall_seconds for own, plain in pairs)
    apart = max(abs(plain["best"] - ours["best"]["score"]) for plain, ours in found)
    overheads = tuple(trial_overhead(ours["rows"]) for _, ours in found)
    whole = tuple(_whole_overhead(window, ours["rows"]) for (window, _), (_, ours) in zip(pairs, found, strict=True))
    trial_seconds = tuple(sum(r["train_seconds"] for r in ours["rows"]) / NUM_TRIALS for _, ours in found)
    return [
        Figure(
            name=name,
            quantity=f"time tfaccel search --parallel={PARALLEL} / Keras Tuner, {NUM_TRIALS} trials",
            values=ratios,
            at_most=MAX_TIME,
            loss_difference=apart,
            loss_tolerance=tolerance,
        ),
        Figure(name=name, quantity="overhead of a trial / its epochs", values=overheads, at_most=MAX_OVERHEAD),
        Figure(name=name, quantity="the same with the processes' start, shared by all trials", values=whole),
        Figure(name=name, quantity="seconds of a trial's epochs", values=trial_seconds),
        Figure(name=name, quantity="best score, Keras Tuner", values=tuple(plain["best"] for plain, _ in found)),
        Figure(
            name=name, quantity="best score, tfaccel search", values=tuple(ours["best"]["score"] for _, ours in found)
        ),
    ]


def trial_overhead(rows: Sequence[dict[str, Any]]) -> float:
    """The time that trials spend outside their epochs, as a fraction of the epochs' time without tracing.

    Example:
        >>> trial_overhead([{"seconds": 11.0, "train_seconds": 10.0}, {"seconds": 12.0, "train_seconds": 10.0}])
        0.15
    """
    trained = sum(row["train_seconds"] for row in rows)
    return float((sum(row["seconds"] for row in rows) - trained) / trained)


def _whole_overhead(window: Window, rows: Sequence[dict[str, Any]]) -> float:
    trained = sum(row["train_seconds"] for row in rows)
    return float((PARALLEL * window.wall_seconds - trained) / trained)


def _plain(name: str, epochs: int, metric: str) -> tuple[dict[str, Any], Window]:
    task = {
        "recipe": name,
        "max_trials": NUM_TRIALS,
        "epochs": epochs,
        "seed": _SEED,
        "objective": metric,
        "direction": "max",
        "fixed": FIXED[name],
    }
    output, wall_seconds, cpu_seconds = _timed(["-m", "tfaccel.benchmarks.plain_program", json.dumps(task)])
    found = json.loads(output)
    return found, _window(wall_seconds, cpu_seconds, found["best"])


def _ours(name: str, epochs: int, metric: str) -> tuple[dict[str, Any], Window]:
    with tempfile.TemporaryDirectory() as folder:
        flags = {
            "recipe": name,
            "max_trials": NUM_TRIALS,
            "epochs": epochs,
            "seed": _SEED,
            "objective": metric,
            "parallel": PARALLEL,
            "algorithm": "random",
            "run_dir": Path(folder, "run"),
            **FIXED[name],
        }
        arguments = [f"--{flag}={value}" for flag, value in flags.items()]
        output, wall, cpu = _timed(["-m", "tfaccel.scripts.main", "tune", "--json", "--quiet", *arguments])
    found = json.loads(output)
    return found, _window(wall, cpu, found["best"]["score"])


def _window(wall_seconds: float, cpu_seconds: float, best: float) -> Window:
    return Window(
        wall_seconds=wall_seconds,
        cpu_seconds=cpu_seconds,
        epoch_seconds=(wall_seconds,),
        tail_seconds=(0.0,),
        loss=best,
    )


def _timed(arguments: Sequence[str]) -> tuple[str, float, float]:
    """The output of a Python program, its wall time, and its CPU time including child processes."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    try:
        written = run_program([sys.executable, *arguments])
    except ProcessError as error:
        raise TfaccelError(f"The search {arguments[1]} failed: {error}") from error
    wall_seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return written, wall_seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _check_same_trials(plain: dict[str, Any], ours: dict[str, Any]) -> None:
    own = {row["trial_id"]: row["hyperparameters"] for row in ours["rows"]}
    if own != plain["trials"]:
        odd = next(trial_id for trial_id in sorted(own) if own[trial_id] != plain["trials"].get(trial_id))
        raise TfaccelError(f"Trial {odd} is {own[odd]} here and {plain['trials'].get(odd)} with Keras Tuner.")
