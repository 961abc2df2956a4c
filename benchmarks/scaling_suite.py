"""The benchmark of `estimate_scaling`: predictions beside measured step times of two workers, and published tables."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.measurement import Measurement, Window
from tfaccel.benchmarks.published_scaling import published_scalings
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.scaling_program import REPLICA_BATCH_SIZES
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.errors import TfaccelError
from tfaccel.extras.estimates.interconnect import Interconnect
from tfaccel.extras.estimates.loopback import LinkFit, measure_link
from tfaccel.extras.estimates.scaling import ScalingOptions, scaling_rows
from tfaccel.planning.step_of_one_device import StepOfOneDevice
from tfaccel.processes.local_cluster import WorkerError, cluster_environments, run_workers

SCALING_FIGURES = ("mlp", "cnn", "published")
NUM_WORKERS = 2
_PROGRAM = "tfaccel.benchmarks.scaling_program"
_NUM_WINDOWS, _NUM_STEPS = 5, 20
_LIMIT_SECONDS = 900.0
_LABELS = {"weak": "whole", "strong": "half"}  # what each replica of two trains on


@dataclass(frozen=True)
class Repetition:
    """One repetition: times of a step with one worker and with two, and the network between them.

    Args:
        alone, together: model -> what `scaling_program` says.
        link: latency and bandwidth.
        load_average: of the machine over a minute, at the end. The benchmark itself contributes up to 2.
    """

    alone: Mapping[str, Any]
    together: Mapping[str, Any]
    link: LinkFit
    load_average: float = 0.0


def run_scaling_suite(names: Sequence[str], options: SuiteOptions) -> Report:
    """Measures one worker and two, each on a core of its own, and compares with predictions.

    Args:
        names: of `SCALING_FIGURES`.
        options: one worker, two workers and the network are measured in turn, `repetitions` times; `scale` multiplies
            the steps of a window.

    Raises:
        TfaccelError: if a worker fails.
    """
    models = [name for name in names if name in REPLICA_BATCH_SIZES]
    task = {"models": models, "num_windows": _NUM_WINDOWS, "num_steps": max(1, round(_NUM_STEPS * options.scale))}
    repetitions = []
    for number in range(1, options.repetitions + 1) if models else ():
        said = f"{number} of {options.repetitions}"
        options.progress(f"network between two workers, {said}")
        link = measure_link()
        options.progress(f"one worker, {said}")
        alone = _run(task, [{"TF_CONFIG": None}])
        options.progress(f"two workers, {said}")
        together = _run(task, cluster_environments(NUM_WORKERS))
        repetitions.append(Repetition(alone, together, link, os.getloadavg()[0]))
    figures = [figure for name in models for figure in local_figures(name, repetitions)]
    if "published" in names:
        figures += published_figures()
    measurements = {name: _measurements(name, repetitions, task["num_steps"]) for name in models}
    links = [asdict(one.link) for one in repetitions]
    machine = {**options.machine(), "links": links, "load_averages": [one.load_average for one in repetitions]}
    return Report(suite="scaling", machine=machine, measurements=measurements, figures=tuple(figures))


def local_figures(name: str, repetitions: Sequence[Repetition]) -> list[Figure]:
    """Measured and predicted efficiency of two workers, and the ratio of their step times, for each repetition."""
    figures = []
    for scaling, label in _LABELS.items():
        measured, predicted, ratios = [], [], []
        for one in repetitions:
            step, found = _step(name, one), statistics.median(one.together[name][label])
            link = Interconnect(
                name="loopback",
                machine_latency_seconds=one.link.latency_seconds,
                machine_bytes_per_second=one.link.bytes_per_second,
            )
            [row] = scaling_rows(step, link, [NUM_WORKERS], ScalingOptions(scaling=scaling))  # type: ignore[arg-type]
            rate = row.global_batch_size / found
            measured.append(rate * step.step_seconds / step.batch_size / NUM_WORKERS)
            predicted.append(row.efficiency)
            ratios.append(row.step_seconds / found)
        quantities = {
            "measured efficiency of 2 workers": measured,
            "predicted efficiency of 2 workers": predicted,
            "predicted / measured step time": ratios,
        }
        figures += [
            Figure(name=name, quantity=f"{scaling} scaling: {quantity}", values=tuple(values))
            for quantity, values in quantities.items()
        ]
    return figures


def published_figures() -> list[Figure]:
    """Predicted / published efficiency of each published row, and of all."""
    rows = published_scalings()
    ratios = [row.predicted_efficiency / row.published_efficiency for row in rows]
    figures = [
        Figure(
            name="published",
            quantity=f"{row.name}, {row.base_replicas} to {row.replicas} GPUs: efficiency predicted "
            f"{row.predicted_efficiency:.3f}, published {row.published_efficiency:.3f}, ratio",
            values=(ratio,),
        )
        for row, ratio in zip(rows, ratios, strict=True)
    ]
    errors = tuple(abs(row.predicted_efficiency - row.published_efficiency) for row in rows)
    everything = "all rows: efficiency predicted / published"
    return [
        *figures,
        Figure(name="published", quantity=everything, values=tuple(ratios)),
        Figure(name="published", quantity="all rows: absolute error of the predicted efficiency", values=errors),
    ]


def _step(name: str, one: Repetition) -> StepOfOneDevice:
    """The step of one worker; its fixed part follows from the times with the whole batch and with half of it."""
    whole, half = (statistics.median(one.alone[name][label]) for label in ("whole", "half"))
    return StepOfOneDevice(
        step_seconds=whole,
        fixed_seconds=min(whole, max(0.0, 2 * half - whole)),
        batch_size=REPLICA_BATCH_SIZES[name],
        gradient_bytes=tuple(one.alone[name]["gradient_bytes"]),
        source="measured",
    )


def _run(task: dict[str, Any], environments: Sequence[Mapping[str, str | None]]) -> dict[str, Any]:
    command = [sys.executable, "-m", _PROGRAM, json.dumps(task)]
    try:
        outputs = run_workers(command, environments=environments, time_limit_seconds=_LIMIT_SECONDS)
    except WorkerError as error:
        raise TfaccelError(f"The benchmark of {len(environments)} worker(s) failed. {error}") from error
    return dict(json.loads(outputs[0].stdout.splitlines()[-1]))


def _measurements(name: str, repetitions: Sequence[Repetition], num_steps: int) -> tuple[Measurement, ...]:
    """The raw windows of all repetitions."""
    found = []
    for said, runs in (("1 worker", [o.alone for o in repetitions]), ("2 workers", [o.together for o in repetitions])):
        for label in ("whole", "half"):
            times = [num_steps * seconds for run in runs for seconds in run[name][label]]
            windows = [
                Window(wall_seconds=one, cpu_seconds=0, epoch_seconds=(one,), tail_seconds=(0,), loss=0)
                for one in times
            ]
            text = f"{said}, {label} replica batch"
            found.append(Measurement(name=text, num_steps=num_steps, windows=tuple(windows), warm_up_loss=0))
    return tuple(found)
