"""Tests a range of learning rates on a recipe or your own workload, and suggests one.

    tfaccel find-learning-rate --recipe=image_classification
    tfaccel find-learning-rate --recipe=image_classification --optimizer=sgd --picture=rates.png --report=rates.json
    tfaccel find-learning-rate --workload=my_project.digits:workload --min_learning_rate=1e-5 --max_learning_rate=1
    tfaccel train --recipe=image_classification --learning_rate=0.02

A new model trains for some steps, each with a higher learning rate; the rate at which the smoothed loss falls most
steeply is suggested. Nothing is kept of the model. The suggestion is for the optimizer, its settings and the batch size
of the test: give the flags that you will train with.

Exit status: 0; 1 if no rate can be suggested; 2 for bad input.
"""

import contextlib
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from absl import flags
from rich.table import Table
from rich.text import Text

from tfaccel.planning.workload import Workload
from tfaccel.scripts.command import check_picture, check_writable, show_progress, table_console
from tfaccel.scripts.command_flags import Flag, command_flags
from tfaccel.scripts.plan_flags import fixed_fields
from tfaccel.scripts.train_flags import workload_options
from tfaccel.scripts.workload_command import run_workload_command
from tfaccel.scripts.workload_flags import chosen_workload
from tfaccel.scripts.workload_parameters import WorkloadParameters
from tfaccel.tuning.learning_rate_report import EXPONENTIAL, LearningRateReport, LearningRateTest

_DEFAULTS = LearningRateTest()
_TEST: dict[str, Flag] = {
    "min_learning_rate": (_DEFAULTS.min_learning_rate, "the first rate"),
    "max_learning_rate": (_DEFAULTS.max_learning_rate, "the last rate"),
    "num_steps": (_DEFAULTS.num_steps, "number of rates to test, each for one optimizer step"),
    "spacing": (EXPONENTIAL, "exponential or linear: how the rates are spaced"),
    "smoothing": (_DEFAULTS.smoothing, "weight of the past in the average of the loss, from 0 to below 1"),
    "divergence_factor": (
        float(_DEFAULTS.divergence_factor or 0),
        "stop when the smoothed loss is this many times its lowest value; 0 to test all rates",
    ),
    "seed": (0, "determines weights and data"),
}
_OUTPUT: dict[str, Flag] = {
    "picture": (str, "draw the losses over the rates into this PNG file"),
    "report": (str, "write everything that was measured to this JSON file"),
    "quiet": (False, "show no progress"),
    "json": (False, "print JSON"),
}
_PROGRESS_SECONDS = 1.0


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values = command_flags({**_TEST, **_OUTPUT})
    return run_workload_command(partial(_main, program=argv[0]), argv, values, description=(__doc__ or "").strip())


def _main(values: flags.FlagValues, parameters: WorkloadParameters, program: str) -> int:
    from tfaccel.tuning.find_learning_rate import find_learning_rate

    test = _test(values)
    check_picture("picture", values.picture)
    check_writable("report", values.report)
    fixed = fixed_fields(values)
    with contextlib.redirect_stdout(sys.stderr) if values.json else contextlib.nullcontext():
        workload = chosen_workload(values, **workload_options(values, parameters))
        progress = _Progress(program, test, quiet=values.quiet)
        report = find_learning_rate(workload, test=test, on_step=progress, **fixed)
        progress.end()
    if values.report is not None:
        report.save(values.report)
    if values.picture is not None and report.learning_rates:
        report.save_picture(values.picture)
    if values.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        _print(report, workload, values)
    return 0 if report.suggestion is not None else 1


def _test(values: flags.FlagValues) -> LearningRateTest:
    given = {name: values[name].value for name in _TEST}
    return LearningRateTest(**{**given, "divergence_factor": values.divergence_factor or None})


class _Progress:
    """Shows on standard error how far the test is, at most once a second."""

    def __init__(self, program: str, test: LearningRateTest, *, quiet: bool) -> None:
        self._program = program
        self._num_steps = test.num_steps
        self._quiet = quiet
        self._shown = time.monotonic()

    def __call__(self, num_steps: int, learning_rate: float, smoothed_loss: float) -> None:
        if not self._quiet and time.monotonic() - self._shown > _PROGRESS_SECONDS:
            self._shown = time.monotonic()
            rate = f"learning rate {learning_rate:.2e}, smoothed loss {smoothed_loss:.4g}"
            show_progress(self._program, f"step {num_steps} of {self._num_steps}, {rate}")

    def end(self) -> None:
        """Clears the line."""
        if not self._quiet:
            show_progress(self._program, "")


def _print(report: LearningRateReport, workload: Workload, values: flags.FlagValues) -> None:
    title = f"Learning rates of {report.workload}, global batch size {report.global_batch_size}"
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    for name, value in report.rows():
        table.add_row(name, Text(value))
    for name in ("picture", "report"):
        if values[name].value is not None and Path(values[name].value).exists():
            table.add_row(name, str(values[name].value))
    console = table_console()
    console.print(table)
    if report.suggestion is not None:
        console.print(Text(_advice(report.suggestion, workload, values)))


def _advice(rate: float, workload: Workload, values: flags.FlagValues) -> str:
    """What to do with the suggestion."""
    if "learning_rate" not in workload.options:
        return f"Set the learning rate of the optimizer, or the peak of its schedule, to about {rate:.1e}."
    which = f"--recipe={values.recipe}" if values.recipe else f"--workload={values.workload}"
    given = [name for name in ("optimizer", "global_batch_size", "data_dir") if values[name].present]
    words: list[Any] = [which, *(f"--{name}={values[name].value}" for name in given), f"--learning_rate={rate:.1e}"]
    return f"Train with it: tfaccel train {' '.join(words)}"


if __name__ == "__main__":
    sys.exit(run(["find-learning-rate", *sys.argv[1:]]))
