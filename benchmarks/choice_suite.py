"""The benchmark of choices: the plan of `find_fastest`, the best of an exhaustive sweep, and `Model.fit`."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tfaccel.benchmarks.choice_tasks import FAMILIES, workload
from tfaccel.benchmarks.family_stages import (
    CACHED_SECONDS,
    CHOSEN,
    MAX_CANDIDATES,
    Racers,
    chosen_plan,
    measure_stages,
    named_failure,
    search,
)
from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.input_figures import INPUT_FIGURE, input_figures
from tfaccel.benchmarks.peer_programs import MODEL_FIT
from tfaccel.benchmarks.plan_sweep import PlanSweep, speed, sweep_space
from tfaccel.benchmarks.report import NOISY_SPREAD, Report
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.benchmarks.timed_race import Timing, ratios
from tfaccel.errors import TfaccelError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.measuring.candidate_child import CandidateFailed
from tfaccel.measuring.report import FIRST_SECONDS, TAUGHT_SECONDS, Candidate, described
from tfaccel.planning.plan import Plan
from tfaccel.processes.child import ProcessError, run_program

CHOICE_FIGURES = (*FAMILIES, INPUT_FIGURE)
SWEPT = "sweep"
TAUGHT = "chosen plan, taught"
ALL = "all families"
_TEACHERS = ("cnn", "mlp")  # the families whose search comes first; the second one for the first
_INPUT_PROGRAM = "tfaccel.benchmarks.input_program"
_NUM_BEST, _NUM_COMBINED = 3, 24
_NUM_IMAGES = 2048

Save = Callable[[dict[str, Any]], None]


def run_choice_suite(
    names: Iterable[str], options: SuiteOptions, *, done: Mapping[str, Any], save: Callable[[Report], None]
) -> Report:
    """Measures families and the input pipeline, except for what is done.

    Args:
        names: of `CHOICE_FIGURES`.
        options: `repetitions` is the number of rounds in which the programs of a family take turns.
        done: the `raw` results of an earlier call, which are kept in the report.
        save: called with the report after each stage.

    Raises:
        TfaccelError: if a program that a figure needs cannot be measured.
    """
    raw = {name: dict(results) for name, results in done.items()}

    def report() -> Report:
        return Report(
            suite="choice",
            machine=options.machine(),
            measurements={},
            figures=choice_figures(raw),
            raw=raw,
            notes=noisy_programs(raw),
        )

    for name in names:
        results = raw.setdefault(name, {})
        stages = _input_stages(options) if name == INPUT_FIGURE else _family_stages(name, results, options)
        measure_stages(results, stages, save=lambda: save(report()))
    return report()


def _input_stages(options: SuiteOptions) -> dict[str, Callable[[], Any]]:
    def measured() -> Any:
        options.progress("input: JPEG images")
        num_images = max(256, round(_NUM_IMAGES * min(1.0, options.scale)))
        task = {"num_images": num_images, "repetitions": options.repetitions}
        try:
            return json.loads(run_program([sys.executable, "-m", _INPUT_PROGRAM, json.dumps(task)]))
        except ProcessError as error:
            raise TfaccelError(f"The input pipelines could not be measured: {error}") from error

    return {"input": measured}


def _family_stages(family: str, results: dict[str, Any], options: SuiteOptions) -> dict[str, Callable[[], Any]]:
    """The stages of a family; each may use the results of those before it."""

    def swept() -> list[Any]:
        space = sweep_space(detect_hardware(), workload(family))
        max_plans = None if options.scale >= 1 else max(2, round(_NUM_COMBINED * options.scale))
        with Racers(family, options) as racers:
            sweep = PlanSweep(
                space, racers.servers, racers.task, progress=lambda text: options.progress(f"{family}: {text}")
            )
            return [candidate.to_json() for candidate in sweep.run(max_plans=max_plans)]

    def raced() -> dict[str, Any]:
        chosen = chosen_plan(results["search"])
        candidates = [Candidate.from_json(one) for one in results[SWEPT]]
        best = sorted((one for one in candidates if speed(one)), key=speed, reverse=True)[:_NUM_BEST]
        return _race(family, chosen, chosen_plan(results["taught"]), [one.plan for one in best], options)

    def taught() -> dict[str, Any]:
        return search(family, options, fresh=True, after=next(one for one in _TEACHERS if one != family))

    return {"search": lambda: search(family, options, fresh=True), "taught": taught, SWEPT: swept, "race": raced}


def _race(family: str, chosen: Plan, taught: Plan, best: list[Plan], options: SuiteOptions) -> dict[str, Any]:
    """The chosen plans, the best ones of the sweep and `Model.fit` in turn; the same plan runs once."""
    reached = [
        CHOSEN if plan == chosen else TAUGHT if plan == taught else f"{SWEPT} {number}"
        for number, plan in enumerate(best, 1)
    ]
    with Racers(family, options) as racers:
        with named_failure(family, CHOSEN):
            programs = {CHOSEN: racers.built_plan(CHOSEN, chosen)}
            if taught != chosen:
                programs[TAUGHT] = racers.built_plan(TAUGHT, taught)
        with named_failure(family, MODEL_FIT.name):
            programs[MODEL_FIT.name] = racers.built_peer(MODEL_FIT)
        failed: dict[str, str] = {}
        for name, plan in zip(reached, best, strict=True):
            try:
                if name not in programs:
                    programs[name] = racers.built_plan(name, plan)
            except CandidateFailed as error:  # it ran in the sweep, so this is rare: memory, for instance
                failed[name] = str(error)
        timings = racers.race(programs, num_rounds=options.repetitions)
    timings.setdefault(TAUGHT, timings[CHOSEN])
    for name in (CHOSEN, TAUGHT, MODEL_FIT.name):
        if timings[name].failure:
            raise TfaccelError(f"{family}: {name} could not be measured: {timings[name].failure}")
    plans = {CHOSEN: chosen, TAUGHT: taught, **dict(zip(reached, best, strict=True))}
    return {
        "timings": {name: timing.to_json() for name, timing in timings.items()},
        "reached_by_sweep": [name for name in reached if name not in failed],
        "failures": failed,
        "plans": {name: plan.to_json() for name, plan in plans.items()},
    }


def choice_figures(raw: Mapping[str, Any]) -> tuple[Figure, ...]:
    """The figures of all families that have been measured, and those over all of them."""
    figures: list[Figure] = []
    medians: dict[str, list[float]] = {}
    for family, results in raw.items():
        if family == INPUT_FIGURE:
            continue
        figures += _costs(family, results)
        if "race" in results:
            for kind, figure in _race_figures(family, results).items():
                figures.append(figure)
                medians.setdefault(kind, []).append(figure.median)
    for name in (CHOSEN, TAUGHT):
        if found := medians.get(name):
            names = f"{name} / best of a sweep, {len(found)} of {len(FAMILIES)} families"
            figures += [
                Figure(name=ALL, quantity=f"{names}, median", values=(statistics.median(found),), at_least=0.95),
                Figure(name=ALL, quantity=f"{names}, worst", values=(min(found),), at_least=0.90),
            ]
    if found := medians.get(MODEL_FIT.name):
        names = f"{CHOSEN} / {MODEL_FIT.name}, {len(found)} of {len(FAMILIES)} families, geometric mean"
        figures.append(Figure(name=ALL, quantity=names, values=(statistics.geometric_mean(found),), at_least=1.5))
    return *figures, *input_figures(raw.get(INPUT_FIGURE, {}).get("input"))


def _costs(family: str, results: Mapping[str, Any]) -> list[Figure]:
    if "search" not in results:
        return []
    found = results["search"]
    num_candidates = float(len(found["report"]["candidates"]))
    figures = [
        Figure(name=family, quantity="plans measured", values=(num_candidates,), at_most=MAX_CANDIDATES),
        Figure(name=family, quantity="seconds of choosing", values=(found["seconds"],), at_most=FIRST_SECONDS),
        Figure(name=family, quantity="seconds, if cached", values=(found["cached_seconds"],), at_most=CACHED_SECONDS),
    ]
    if "taught" in results:
        seconds = (results["taught"]["seconds"],)
        figures.append(Figure(name=family, quantity="seconds, if taught", values=seconds, at_most=TAUGHT_SECONDS))
    return figures


def _race_figures(family: str, results: Mapping[str, Any]) -> dict[str, Figure]:
    """By what they compare: each chosen plan with the best of the sweep, and the first one with `Model.fit`."""
    race = results["race"]
    timings = {name: Timing.from_json(timing) for name, timing in race["timings"].items()}
    fastest = max(race["reached_by_sweep"], key=lambda name: timings[name].rate, default=CHOSEN)
    plans = {name: Plan.from_json(plan) for name, plan in race["plans"].items()}
    reference = Plan.from_json(results[SWEPT][0]["plan"])

    def text(name: str) -> str:
        return described(Candidate(plan=plans[name], axis="float32"), reference)

    figures = {
        name: Figure(
            name=family,
            quantity=f"throughput {name} ({text(name)}) / best of {len(results[SWEPT])} swept ({text(fastest)})",
            values=ratios(timings[name], timings[fastest]),
        )
        for name in (CHOSEN, TAUGHT)
        if name in timings
    }
    return figures | {
        MODEL_FIT.name: Figure(
            name=family,
            quantity=f"throughput {CHOSEN} / {MODEL_FIT.name}",
            values=ratios(timings[CHOSEN], timings[MODEL_FIT.name]),
            at_least=0.98,
        )
    }


def noisy_programs(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Warnings about programs whose windows varied, and about those that failed."""
    notes = []
    for family, results in raw.items():
        for name, data in results.get("race", {}).get("timings", {}).items():
            timing = Timing.from_json(data)
            if timing.failure:
                notes.append(f"{family}: {name} failed: {timing.failure}")
            elif timing.spread > NOISY_SPREAD:
                notes.append(f"{family}: {name} varies by {timing.spread:.0%}: is the machine busy?")
    return tuple(notes)
