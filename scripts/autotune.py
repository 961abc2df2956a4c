"""Measures plans for a recipe or your own workload on this machine, and picks the fastest one that computes the same.

    tfaccel autotune --recipe=image_classification
    tfaccel autotune --recipe=image_classification --write=plan.json --report=report.json
    tfaccel autotune --workload=my_project.digits:workload --budget_seconds=30 --global_batch_size=256
    tfaccel train --recipe=image_classification --plan=plan.json

Each plan trains for some steps in a process of its own, in turn with the best one so far. A plan whose loss departs by
more than 5 % from that of float32 without XLA is rejected, whatever its speed. Plan fields that are set by flags stay
as they are. The result is kept in TFACCEL_CACHE or ~/.cache/tfaccel, and `tfaccel train` uses it from then on. Run
nothing else meanwhile: other programs disturb the measurements.
"""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from absl import flags
from rich.table import Table
from rich.text import Text

from tfaccel.errors import PlanError
from tfaccel.measuring.candidate import Candidate
from tfaccel.measuring.report import HEADINGS, Report
from tfaccel.scripts.command import run_command, table_console
from tfaccel.scripts.command_flags import Flag, command_flags
from tfaccel.scripts.flag_help import grouped_flags_help
from tfaccel.scripts.plan_flags import define_plan_flags, fixed_fields
from tfaccel.scripts.workload_flags import define_workload_flags, reference_of_workload
from tfaccel.scripts.workload_parameters import WorkloadParameters

_FLAGS: dict[str, Flag] = {
    "budget_seconds": (60.0, "about how long to measure"),
    "max_candidates": (12, "how many plans to measure at most"),
    "limit_seconds": (120.0, "time limit for one plan to build its model, or to run one window"),
    "seed": (0, "determines weights and data"),
    "write": (str, "write the fastest plan to this JSON file, for --plan of `tfaccel train`"),
    "report": (str, "write everything that was measured to this JSON file"),
    "again": (False, "measure again, even if the result of an earlier call is kept"),
    "quiet": (False, "show no progress"),
    "json": (False, "print JSON"),
}


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values = command_flags(_FLAGS)
    define_workload_flags(values)
    define_plan_flags(values)
    parameters = WorkloadParameters(argv, values)
    return run_command(
        lambda: _main(values, parameters),
        argv,
        values,
        description=(__doc__ or "").strip(),
        flags_help=lambda: grouped_flags_help(values, parameters),
    )


def _main(values: flags.FlagValues, parameters: WorkloadParameters) -> int:
    from tfaccel.measuring.find_fastest import find_fastest
    from tfaccel.measuring.plan_search import MeasureOptions

    for name in ("write", "report"):
        check_writable(name, values[name].value)
    with contextlib.redirect_stdout(sys.stderr) if values.json else contextlib.nullcontext():
        report = find_fastest(
            reference_of_workload(values),
            measure=MeasureOptions(
                budget_seconds=values.budget_seconds,
                max_candidates=values.max_candidates,
                limit_seconds=values.limit_seconds,
                seed=values.seed,
                use_cache=not values.again,
            ),
            on_candidate=_show_nothing if values.quiet else _show,
            **parameters.chosen(),
            **fixed_fields(values),
        )
    if values.write is not None:
        report.plan.save(values.write)
    if values.report is not None:
        report.save(values.report)
    if values.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        _print(report)
    return 0


def check_writable(flag: str, path: str | None) -> None:
    """Refuses an output file that cannot be written, before anything is measured."""
    if path is not None and (not Path(path).parent.is_dir() or Path(path).is_dir()):
        raise PlanError(f"--{flag} must be a file in an existing directory. Received: --{flag}={path}.")


def _show(candidate: Candidate) -> None:
    said = candidate.failure or candidate.rejection or "measured"
    print(f"{candidate.axis}: {said}", file=sys.stderr)


def _show_nothing(candidate: Any) -> None:
    """Shows no progress."""


def _print(report: Report) -> None:
    table = Table(title=f"Plans for {report.workload}, measured in {report.seconds:.0f} s", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for row in report.rows():
        table.add_row(*(Text(text) for text in row))
    console = table_console()
    console.print(table)
    for axis, gain in report.gains.items():
        console.print(Text(f"{axis}: {gain:.2f} times as fast"))
    console.print(Text(report.stopped_because))
    console.print(Text("`tfaccel train` with the same workload and flags uses the chosen plan from now on."))
