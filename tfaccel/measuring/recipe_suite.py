"""The recipes' benchmark: each trained by `tfaccel.train` and by `Model.fit` by turns, to the same number of epochs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from importlib import import_module

from tfaccel.measuring.figure import Figure
from tfaccel.measuring.interleaved import measure_interleaved
from tfaccel.measuring.measurement import Measurement
from tfaccel.measuring.recipe_programs import PlainTraining, PlannedTraining, RecipeTraining, input_waits
from tfaccel.measuring.report import Report
from tfaccel.measuring.suite_options import SuiteOptions
from tfaccel.planning.recipe_list import RECIPES_PACKAGE

MOST_TIME = 0.6  # geometric mean over the recipes of time with tfaccel / time with Keras alone
MOST_INPUT_WAIT = 0.05


def run_recipe_suite(names: Sequence[str], options: SuiteOptions) -> Report:
    """Measures the named recipes, one after the other, and reports them.

    Args:
        names: recipes.
        options: `scale` multiplies the epochs.
    """
    figures: list[Figure] = []
    measurements: dict[str, tuple[Measurement, ...]] = {}
    ratios: list[tuple[float, ...]] = []
    for name in names:
        make_workload = import_module(f"{RECIPES_PACKAGE}.{name}").workload
        default: int = inspect.signature(make_workload).parameters["epochs"].default
        epochs = max(1, round(default * options.scale))
        work = make_workload(epochs=epochs)
        programs = [PlannedTraining("tfaccel.train", work, epochs), PlainTraining("Model.fit", work, epochs)]
        times = measure_interleaved(
            programs,
            repetitions=options.repetitions,
            progress=lambda text, name=name: options.progress(f"{name}: {text}"),  # type: ignore[misc]
        )
        measurements[name] = times
        ours, plain = times
        pairs = zip(ours.windows, plain.windows, strict=True)
        ratios.append(tuple(own.wall_seconds / other.wall_seconds for own, other in pairs))
        figures.append(Figure(name=name, quantity="time tfaccel.train / Model.fit", values=ratios[-1]))
        for program, measurement in zip(programs, times, strict=True):
            figures += _of_program(name, program, measurement)
        options.progress(f"{name}: wait for the input")
        waits = input_waits(work, repetitions=options.repetitions)
        figures.append(Figure(name=name, quantity="wait for the input / step", values=waits, at_most=MOST_INPUT_WAIT))
    means = tuple(math.exp(sum(map(math.log, values)) / len(values)) for values in zip(*ratios, strict=True))
    figures.append(Figure(name="all", quantity="time tfaccel.train / Model.fit, geometric mean over the recipes",
                          values=means, at_most=MOST_TIME))  # fmt: skip
    return Report(suite="recipes", machine=options.machine(), measurements=measurements, figures=tuple(figures))


def _of_program(name: str, program: RecipeTraining, measurement: Measurement) -> list[Figure]:
    """Its time, examples per second, and what its models reached."""
    seconds = tuple(window.wall_seconds for window in measurement.windows)
    examples = program.epochs * (program.workload.num_train_examples or 0)
    results = program.results[-len(seconds) :]
    metric = next((key for key in results[0] if key != "loss"), "loss")
    quantities = {
        "seconds": seconds,
        "examples per second, all included": tuple(examples / second for second in seconds),
        metric: tuple(result[metric] for result in results),
    }
    return [
        Figure(name=name, quantity=f"{quantity}, {program.name}", values=values)
        for quantity, values in quantities.items()
    ]
