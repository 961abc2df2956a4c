"""The benchmark of faults: each row of the matrix of faults, done for real, and the goodput of a run with kills.

A run that goes on must end bit-equal to one that was not disturbed, having seen each example once per epoch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfaccel.benchmarks import (
    fault_rows_data,
    fault_rows_files,
    fault_rows_hostile,
    fault_rows_ray,
    fault_rows_start,
    fault_rows_workers,
)
from tfaccel.benchmarks.fault_row import FaultRow, Lab, NotPossibleHere, Trial
from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.goodput import GOODPUT, goodput_figures
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.suite_options import SuiteOptions

ROWS: dict[str, FaultRow] = {
    **fault_rows_workers.ROWS,
    **fault_rows_files.ROWS,
    **fault_rows_start.ROWS,
    **fault_rows_data.ROWS,
    **fault_rows_hostile.ROWS,
    **fault_rows_ray.ROWS,
}
FAULT_FIGURES = (*ROWS, GOODPUT)


def run_faults_suite(names: Sequence[str], options: SuiteOptions) -> Report:
    """Runs the named rows (keys of `ROWS`), and the goodput.

    Raises:
        TfaccelError: if a run that is not disturbed fails.
    """
    lab = Lab()
    figures: list[Figure] = []
    raw: dict[str, Any] = {}
    notes = []
    for name in names:
        if name == GOODPUT:
            found, raw[name] = goodput_figures(options)
            figures += found
            continue
        row = ROWS[name]
        try:
            trials = _trials(name, row, lab, options)
        except NotPossibleHere as reason:
            notes.append(f"{name} was not tried: {reason}.")
            continue
        figures += row_figures(name, row, trials)
        raw[name] = {"fault": row.fault, "promise": row.promise, "trials": [asdict(trial) for trial in trials]}
        notes += [f"{name}: {trial.said}" for trial in trials if not trial.right]
    return Report(
        suite="faults", machine=options.machine(), measurements={}, figures=tuple(figures), raw=raw, notes=tuple(notes)
    )


def _trials(name: str, row: FaultRow, lab: Lab, options: SuiteOptions) -> list[Trial]:
    count = max(1, round((row.num_trials or options.repetitions) * options.scale))
    trials = []
    for number in range(1, count + 1):
        options.progress(f"{name}: {number} of {count}")
        with tempfile.TemporaryDirectory(prefix="tfaccel-") as folder:
            trials.append(row.trial(lab, Path(folder)))
    return trials


def row_figures(name: str, row: FaultRow, trials: Sequence[Trial]) -> list[Figure]:
    """The fraction of trials that went as promised, how soon the fault was noticed, and the time that it cost."""
    right = sum(trial.right for trial in trials) / len(trials)
    what = f"{row.fault}: {row.promise} (fraction of {len(trials)})"
    figures = [Figure(name=name, quantity=what, values=(right,), at_least=1.0)]
    if row.notice_seconds is not None:
        seconds = [float("inf") if trial.notice_seconds is None else trial.notice_seconds for trial in trials]
        figures.append(
            Figure(name=name, quantity="seconds until it is noticed", values=tuple(seconds), at_most=row.notice_seconds)
        )
    ratios = [trial.ratio for trial in trials if trial.ratio is not None]
    if ratios:
        figures.append(Figure(name=name, quantity="time without the fault / with it", values=tuple(ratios)))
    return figures
