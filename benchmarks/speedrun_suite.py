"""The speedrun: how long it takes to learn to classify images to an accuracy, change by change, and beside PyTorch."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.gpu.trial import in_new_process
from tfaccel.benchmarks.peer_programs import how_to_install
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.speedrun_rows import FASTEST, ROWS, STOCK, TORCH, Row
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.errors import TfaccelError

FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
SPEEDRUN_FIGURES = tuple(ROWS)
MAX_OF_STOCK, MAX_OF_TORCH = 0.2, 0.9
TARGET = 94
_LIMIT_SECONDS = 4 * 3600.0
_FUNCTION = "tfaccel.benchmarks.speedrun_program:run"
_MIN_IMAGES = 512


def run_speedrun_suite(
    names: Iterable[str],
    options: SuiteOptions,
    *,
    machine: Mapping[str, Any],
    done: Mapping[str, Any],
    save: Callable[[Report], None],
) -> Report:
    """Trains each row to each of its accuracies, once for each seed; the rows take turns.

    Args:
        names: of `ROWS`.
        options: `repetitions` is the number of seeds; with a scale below 1, fewer images are trained on.
        machine: for the report, and its "data": a folder with the four idx files of Fashion-MNIST, or an .npz file.
        done: the `raw` results of an earlier call. Those of as many epochs as now are kept.
        save: called with the report after each training.

    Raises:
        TfaccelError: if the data are missing, or a row cannot be trained.
    """
    data = machine["data"]
    if not Path(data).exists():
        raise TfaccelError(
            f"--data: {data} does not exist. Name a folder with the idx files of Fashion-MNIST, as Debian's package "
            "dataset-fashion-mnist installs them."
        )
    names = list(names)
    raw = {name: valid for name, results in done.items() if (valid := _still_valid(name, results))}
    missing = {name: hint for name in names if ROWS[name].program == "torch" and (hint := how_to_install("torch"))}
    notes = tuple(f"{name}: not measured; {hint}" for name, hint in missing.items())

    def report() -> Report:
        return Report(
            suite="speedrun",
            machine=dict(machine),
            measurements={},
            figures=speedrun_figures(raw),
            raw=raw,
            notes=notes,
        )

    for seed in range(options.repetitions):
        for name in names:
            if name in missing:
                continue
            for target in ROWS[name].epochs:
                runs = raw.setdefault(name, {}).setdefault(str(target), [])
                if len(runs) > seed:
                    continue
                options.progress(f"{name}, {target} %, seed {seed + 1} of {options.repetitions}")
                runs.append(_trained(ROWS[name], target, seed, options, data))
                save(report())
    return report()


def _still_valid(name: str, results: Mapping[str, Any]) -> dict[str, Any]:
    epochs = ROWS[name].epochs
    valid = {key: [run for run in runs if run.get("epochs") == epochs.get(int(key))] for key, runs in results.items()}
    return {key: runs for key, runs in valid.items() if runs}


def _trained(row: Row, target: int, seed: int, options: SuiteOptions, data: str) -> dict[str, Any]:
    """One training in a new process."""
    max_images = None if options.scale >= 1 else max(_MIN_IMAGES, round(60_000 * options.scale))
    arguments = {"task": row.task(target, seed), "data": data, "is_held_out": False, "max_images": max_images}
    found = in_new_process(_FUNCTION, arguments, limit_seconds=_LIMIT_SECONDS)
    return {"epochs": row.epochs[target], **found}


def speedrun_figures(raw: Mapping[str, Any]) -> tuple[Figure, ...]:
    """For each row and accuracy the seconds and the accuracy of its seeds, and what they are of the rows compared with.

    Example:
        >>> runs = {"94": [{"seconds": 9.0, "accuracy": 0.941}]}
        >>> [figure.quantity for figure in speedrun_figures({FASTEST: runs})]
        ['accuracy in percent, to reach 94', 'seconds to 94 % (mean of 1)']
    """
    figures: list[Figure] = []
    for name, results in raw.items():
        for target, runs in results.items():
            accuracy = 100 * statistics.mean(run["accuracy"] for run in runs)
            figures.append(
                Figure(
                    name=name,
                    quantity=f"accuracy in percent, to reach {target}",
                    values=(accuracy,),
                    at_least=None if name == STOCK else float(target),  # or its own best
                )
            )
            quantity = f"seconds to {target} % (mean of {len(runs)})"
            figures.append(Figure(name=name, quantity=quantity, values=(_mean_seconds(runs),)))
    target = str(TARGET)
    if target not in raw.get(FASTEST, {}):
        return tuple(figures)
    ours = _mean_seconds(raw[FASTEST][target])
    if raw.get(STOCK):
        theirs = min(_mean_seconds(runs) for runs in raw[STOCK].values())
        quantity = f"seconds to {target} % / those of stock Keras to 93 % or its best"
        figures.append(Figure(name=FASTEST, quantity=quantity, values=(ours / theirs,), at_most=MAX_OF_STOCK))
    theirs_of_torch = [_mean_seconds(raw[name][target]) for name in TORCH if target in raw.get(name, {})]
    if theirs_of_torch:
        quantity = f"seconds to {target} % / those of PyTorch"
        ratio = ours / min(theirs_of_torch)
        figures.append(Figure(name=FASTEST, quantity=quantity, values=(ratio,), at_most=MAX_OF_TORCH))
    return tuple(figures)


def _mean_seconds(runs: list[dict[str, Any]]) -> float:
    return statistics.mean(run["seconds"] for run in runs)
