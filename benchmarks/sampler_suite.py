"""The benchmark of samplers: Optuna alone and `tfaccel.search`, on the same space with the same seeds."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.errors import TfaccelError
from tfaccel.processes.child import ProcessError, run_program

SAMPLER_FIGURES = ("tpe", "bayesian")
NUM_TRIALS, EPOCHS = 30, 5
ALONE = "Optuna alone"
MAX_LOSS = 1.01  # relative to Optuna's loop: the same trials, up to rounding
_PROGRAM = "tfaccel.benchmarks.sampler_program"


def run_sampler_suite(names: Sequence[str], options: SuiteOptions) -> Report:
    """Measures searches of the digits MLP, one for each seed starting at 1.

    Args:
        names: algorithms of `tfaccel.search`.
        options: `repetitions` is the number of seeds; `scale` multiplies the trials.

    Raises:
        TfaccelError: if a search fails.
    """
    num_trials = max(1, round(NUM_TRIALS * options.scale))
    programs = {ALONE: ("optuna", "tpe"), **{name: ("search", name) for name in names}}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in programs}
    for seed in range(1, options.repetitions + 1):  # interleaved, so that a busy machine affects all
        for name, (program, algorithm) in programs.items():
            options.progress(f"{name}, seed {seed} of {options.repetitions}")
            found[name].append(run_sampler(program, algorithm, seed=seed, num_trials=num_trials))
    figures = sampler_figures(found, num_trials)
    return Report(suite="samplers", machine=options.machine(), measurements={}, figures=figures)


def sampler_figures(found: Mapping[str, Sequence[dict[str, Any]]], num_trials: int) -> tuple[Figure, ...]:
    """The figures of searches: program -> its result with each seed."""
    alone = found[ALONE]
    losses, seconds = [best_loss(result) for result in alone], [_median_seconds(result) for result in alone]
    figures = [Figure(name=ALONE, quantity="processor seconds of a suggestion", values=tuple(seconds))]
    for name, own in found.items():
        best = tuple(best_loss(result) for result in own)
        figures.append(Figure(name=name, quantity=f"best val_loss of {num_trials} trials", values=best))
        if name == ALONE:
            continue
        ratios = tuple(one / other for one, other in zip(best, losses, strict=True))
        slower = tuple(_median_seconds(one) / other for one, other in zip(own, seconds, strict=True))
        figures += [
            Figure(
                name=name,
                quantity="best val_loss / Optuna alone",
                values=ratios,
                at_most=MAX_LOSS if name == "tpe" else None,
            ),
            Figure(name=name, quantity="processor time of a suggestion / Optuna alone", values=slower),
        ]
        if name == "tpe":
            same = tuple(float(one["values"] == other["values"]) for one, other in zip(own, alone, strict=True))
            figures.append(
                Figure(name=name, quantity="the trials are those of Optuna alone (1) or not (0)", values=same)
            )
    return tuple(figures)


def best_loss(result: dict[str, Any]) -> float:
    """The lowest loss of a search, ignoring failed trials.

    Example:
        >>> best_loss({"losses": [0.5, None, 0.25]})
        0.25
    """
    return min(loss for loss in result["losses"] if loss is not None)


def _median_seconds(result: dict[str, Any]) -> float:
    return statistics.median(result["suggestion_seconds"])


def run_sampler(program: str, algorithm: str, *, seed: int, num_trials: int) -> dict[str, Any]:
    """The result of `tfaccel.benchmarks.sampler_program`.

    Raises:
        TfaccelError: if it fails.
    """
    task = {"program": program, "algorithm": algorithm, "seed": seed, "max_trials": num_trials, "epochs": EPOCHS}
    command = [sys.executable, "-m", _PROGRAM, json.dumps(task)]
    try:
        return dict(json.loads(run_program(command)))
    except ProcessError as error:
        raise TfaccelError(f"The search {task} failed: {error}") from error
