"""Measures plans for a recipe or your own workload on this machine, and picks the fastest one that computes the same.

    tfaccel find-fastest --recipe=image_classification
    tfaccel find-fastest --recipe=image_classification --write=plan.json --report=report.json
    tfaccel find-fastest --workload=my_project.digits:workload --budget_seconds=30 --global_batch_size=256
    tfaccel train --recipe=image_classification --plan=plan.json

Each plan trains for some steps in a process of its own, in turn with the best one so far. A plan whose loss departs by
more than 5 % from that of float32 without XLA is rejected, whatever its speed. Plan fields that are set by flags stay
as they are. The result is kept in TFACCEL_CACHE or ~/.cache/tfaccel, and `tfaccel train` uses it from then on. After
Ctrl-C, what was measured so far is shown and kept, and the same command continues. Run nothing else meanwhile: other
programs disturb the measurements.
"""

import contextlib
import json
import sys
import time
from functools import partial
from typing import Any

from absl import flags
from rich.table import Table
from rich.text import Text

from tfaccel.measuring.report import HEADINGS, Candidate, MeasureOptions, Report, SearchProgress
from tfaccel.planning.plan import Plan
from tfaccel.scripts.command import INTERRUPTED, check_writable, interrupted, show_progress, table_console
from tfaccel.scripts.command_flags import Flag, command_flags, option_flags
from tfaccel.scripts.plan_flags import fixed_fields
from tfaccel.scripts.train_flags import workload_options
from tfaccel.scripts.workload_command import run_workload_command
from tfaccel.scripts.workload_flags import reference_of_workload
from tfaccel.scripts.workload_parameters import WorkloadParameters

_OPTIONS = option_flags(
    MeasureOptions,
    {
        "budget_seconds": "about how long to measure; by default 30 seconds, or 20 after other models on this machine",
        "max_candidates": "how many plans to measure at most",
        "limit_seconds": "time limit for one plan to build its model, or to run one window",
        "seed": "determines weights and data",
        "tune_batch": "measure other global batch sizes too: faster or slower training, but other results",
    },
)
_FLAGS: dict[str, Flag] = {
    **_OPTIONS,
    "write": (str, "write the fastest plan to this JSON file, for --plan of `tfaccel train`"),
    "report": (str, "write everything that was measured to this JSON file"),
    "again": (False, "measure again, even if the result of an earlier call is kept"),
    "quiet": (False, "show no progress"),
    "json": (False, "print JSON"),
}


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values = command_flags(_FLAGS)
    return run_workload_command(partial(_main, program=argv[0]), argv, values, description=(__doc__ or "").strip())


def _main(values: flags.FlagValues, parameters: WorkloadParameters, program: str) -> int:
    for name in ("write", "report"):
        check_writable(name, values[name].value)
    given = {name: values[name].value for name in _OPTIONS}
    measure = MeasureOptions(**given, use_cache=not values.again, for_new_process=True)
    options = {**workload_options(values, parameters), **fixed_fields(values)}
    with contextlib.redirect_stdout(sys.stderr) if values.json else contextlib.nullcontext():
        try:
            report = measured_plans(reference_of_workload(values), options, measure=measure, quiet=values.quiet)
        except _Interrupted as error:
            report = error.report
            interrupted(program, error)
    if values.write is not None:
        report.plan.save(values.write)
    if values.report is not None:
        report.save(values.report)
    if values.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        _print(report, tune_batch=values.tune_batch)
    return 0 if report.complete else INTERRUPTED


def measured_plans(
    workload: Any, options: dict[str, Any], *, measure: MeasureOptions | None = None, quiet: bool = False
) -> Report:
    """`find_fastest`, showing each plan on standard error while it is measured, and what came of it.

    Raises:
        KeyboardInterrupt: after Ctrl-C, with a text that says how the search continues, and what was measured.
    """
    from tfaccel.measuring.find_fastest import find_fastest

    measure = measure or MeasureOptions(for_new_process=True)
    shown = _Shown(measure, quiet=quiet)
    try:
        return find_fastest(workload, measure=measure, progress=shown, **options)
    except KeyboardInterrupt:
        again = "The same command continues" if measure.use_cache else "The same command without --again continues"
        if shown.report is None:
            raise KeyboardInterrupt(f"{again}.") from None
        if shown.report.kept_in is None:
            again = (
                "What an earlier call measured to the end stays kept" if not measure.use_cache else "It was not kept"
            )
        raise _Interrupted(f"{again}.", shown.report) from None


class _Interrupted(KeyboardInterrupt):
    """Ctrl-C, and the report of what was measured before."""

    def __init__(self, text: str, report: Report) -> None:
        super().__init__(text)
        self.report = report


class _Shown(SearchProgress):
    """Shows each plan on standard error, unless quiet; keeps the report of an interrupted search."""

    def __init__(self, measure: MeasureOptions, *, quiet: bool) -> None:
        self.report: Report | None = None
        self._measure, self._quiet = measure, quiet
        self._began = time.monotonic()
        self._count = 0

    def started(self, plan: Plan, axis: str) -> None:
        if self._quiet:
            return
        self._count += 1
        number = f"plan {self._count} of at most {self._measure.max_candidates}"
        budget = self._measure.budget_seconds
        seconds = f"{time.monotonic() - self._began:.0f} s" + ("" if budget is None else f" of {budget:g} s")
        show_progress("find-fastest", f"measuring {number}, {seconds}: {axis}")

    def measured(self, candidate: Candidate) -> None:
        if self._quiet:
            return
        show_progress("find-fastest", "")
        faster = "measured" if candidate.speedup is None else f"{candidate.speedup:.2f} times the speed"
        print(f"{candidate.axis}: {candidate.failure or candidate.rejection or faster}", file=sys.stderr)

    def interrupted(self, report: Report) -> None:
        self.report = report


def _print(report: Report, *, tune_batch: bool) -> None:
    when = " in an earlier call (--again measures again)" if report.from_cache else ""
    title = f"Plans for {report.workload}, measured in {report.seconds:.0f} s{when}"
    table = Table(title=title, title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for row in report.rows():
        table.add_row(*(Text(text) for text in row))
    console = table_console()
    console.print(table)
    for axis, gain in report.gains.items():
        console.print(Text(f"{axis}: {gain:.2f} times as fast"))
    console.print(Text(report.stopped_because))
    if report.num_lessons:
        searches = "one other search" if report.num_lessons == 1 else f"{report.num_lessons} other searches"
        console.print(Text(f"What paid in {searches} on this machine was tried first."))
    if tune_batch:
        console.print(
            Text("The batch may be another one: pass the plan to `tfaccel train --plan=FILE` (--write=FILE).")
        )
    elif report.kept_in is not None:
        console.print(Text("`tfaccel train` with the same workload and flags uses the chosen plan from now on."))
    console.print(Text(f"To repeat it anywhere: {report.command}"), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(run(["find-fastest", *sys.argv[1:]]))
