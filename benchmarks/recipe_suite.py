"""The recipes' benchmark: each is trained to its stated result, alternately by `tfaccel.train` and `Model.fit`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.input_waits import input_waits
from tfaccel.benchmarks.measurement import Measurement, measure_interleaved
from tfaccel.benchmarks.recipe_programs import (
    DefaultTraining,
    PlainTraining,
    PlannedTraining,
    RecipeTraining,
)
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.stated_results import STATED_RESULTS
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.planning.load_workload import load_recipe
from tfaccel.planning.run_length import get_run_epochs

MAX_TIME = 0.6  # geometric mean over the recipes of time with tfaccel / time with Keras's defaults
MAX_INPUT_WAIT = 0.05
_MORE_EPOCHS = 2  # multiple of the recipe's epochs that Keras's defaults get to reach the result


def run_recipe_suite(names: Sequence[str], options: SuiteOptions) -> Report:
    """Measures the named recipes, one after the other, and reports them.

    Args:
        names: the recipes.
        options: `scale` multiplies the epochs.
    """
    figures: list[Figure] = []
    measurements: dict[str, tuple[Measurement, ...]] = {}
    ratios: dict[str, list[tuple[float, ...]]] = {}
    for name in names:
        programs = _programs(name, options.scale)
        times = measure_interleaved(
            programs,
            repetitions=options.repetitions,
            num_discarded=0,  # Each run builds and traces everything again, so there is nothing to warm up.
            progress=lambda text, name=name: options.progress(f"{name}: {text}"),
        )
        measurements[name] = times
        for program, other in zip(programs[1:], times[1:], strict=True):
            quantity, values = f"time tfaccel.train / {program.name}", _ratios(times[0], other)
            ratios.setdefault(quantity, []).append(values)
            figures.append(Figure(name=name, quantity=quantity, values=values))
        for program, measurement in zip(programs, times, strict=True):
            figures += _of_program(name, program, measurement)
        options.progress(f"{name}: wait for the input")
        waits = input_waits(programs[0].workload, repetitions=options.repetitions)
        figures.append(Figure(name=name, quantity="wait for the input / step", values=waits, at_most=MAX_INPUT_WAIT))
    for quantity, of_recipes in ratios.items():
        means = tuple(math.exp(sum(map(math.log, values)) / len(values)) for values in zip(*of_recipes, strict=True))
        at_most = MAX_TIME if quantity.endswith("defaults") else None
        figures.append(Figure(name="all", quantity=f"{quantity}, geometric mean", values=means, at_most=at_most))
    return Report(suite="recipes", machine=options.machine(), measurements=measurements, figures=tuple(figures))


def _programs(name: str, scale: float) -> list[RecipeTraining]:
    work = load_recipe(name)
    epochs, target = max(1, round(get_run_epochs(work, None) * scale)), STATED_RESULTS.get(name)
    return [
        PlannedTraining("tfaccel.train", work, epochs, target),
        DefaultTraining("Model.fit, defaults", work, epochs * (_MORE_EPOCHS if target else 1), target),
        PlainTraining("Model.fit, same settings", work, epochs, target),
    ]


def _ratios(ours: Measurement, other: Measurement) -> tuple[float, ...]:
    pairs = zip(ours.windows, other.windows, strict=True)
    return tuple(own.wall_seconds / others.wall_seconds for own, others in pairs)


def _of_program(name: str, program: RecipeTraining, measurement: Measurement) -> list[Figure]:
    """The program's time, examples per second, final metric, and fraction of runs that reached the stated result."""
    seconds = tuple(window.wall_seconds for window in measurement.windows)
    results = program.results[-len(seconds) :]
    metric = program.target.metric if program.target else "loss"
    num_examples = [n * (program.workload.num_train_examples or 0) for n in program.epochs_done[-len(seconds) :]]
    quantities = {
        "seconds": seconds,
        "examples per second, all included": tuple(n / s for n, s in zip(num_examples, seconds, strict=True)),
        metric: tuple(result[metric] for result in results),
    }
    if program.target:
        reached = sum(program.reached[-len(seconds) :]) / len(seconds)
        quantities[f"fraction of the runs that reached {program.target}"] = (reached,)
    return [
        Figure(name=name, quantity=f"{quantity}, {program.name}", values=values)
        for quantity, values in quantities.items()
    ]
