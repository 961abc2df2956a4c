"""Finds the largest batch that fits into memory, and the one that trains the most examples per second, by training.

    tfaccel find-batch-size --recipe=image_classification
    tfaccel find-batch-size --recipe=image_classification --memory_limit_bytes=4000000000 --dtype_policy=mixed_bfloat16
    tfaccel find-batch-size --workload=my_project.digits:workload --budget_seconds=120 --out=batches.json

Each batch size trains for some steps in a process of its own, so that running out of memory is a recorded result. The
search begins with --global_batch_size, doubles until memory or the data end, then bisects. A larger batch needs another
learning rate and may learn less per epoch: the fastest is not always the best. `tfaccel estimate-memory` estimates
without training. Ctrl-C prints what was found so far. Run nothing else meanwhile: other programs disturb the times.
"""

import contextlib
import json
import sys

from absl import flags
from rich.table import Table
from rich.text import Text

from tfaccel.measuring.batch_report import BatchOptions, BatchReport, BatchTrial
from tfaccel.measuring.memory_estimate import mebibytes
from tfaccel.scripts.command import INTERRUPTED, check_writable, table_console
from tfaccel.scripts.command_flags import Flag, command_flags, option_flags
from tfaccel.scripts.plan_flags import fixed_fields
from tfaccel.scripts.train_flags import workload_options
from tfaccel.scripts.workload_command import run_workload_command
from tfaccel.scripts.workload_flags import reference_of_workload
from tfaccel.scripts.workload_parameters import WorkloadParameters

_NOTHING_FITS = 1

_OPTIONS = option_flags(
    BatchOptions,
    {
        "head_room": "the fraction of the memory limit that is to stay free",
        "budget_seconds": "about how long to search",
        "limit_seconds": "time limit for one batch size to build its model, or to run one window",
        "seed": "determines weights and data",
    },
)
# Bounds of whole numbers, and their help.
_LIMITS = {
    "memory_limit_bytes": (2**60, "memory that one process may use, or one GPU (default: all that is available)"),
    "max_replica_batch_size": (2**31, "try no larger batch per replica"),
}
_FLAGS: dict[str, Flag] = {
    **_OPTIONS,
    "out": (str, "also write the report, with all windows, to this JSON file"),
    "quiet": (False, "show no progress"),
    "json": (False, "print JSON"),
}


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values = command_flags(_FLAGS)
    for name, (bound, text) in _LIMITS.items():
        flags.DEFINE_integer(name, None, text, lower_bound=1, upper_bound=bound, flag_values=values)
    return run_workload_command(_main, argv, values, description=(__doc__ or "").strip())


def _main(values: flags.FlagValues, parameters: WorkloadParameters) -> int:
    from tfaccel.measuring.find_batch_size import find_batch_size

    check_writable("out", values.out)
    search = BatchOptions(**{name: values[name].value for name in (*_OPTIONS, *_LIMITS)})
    with contextlib.redirect_stdout(sys.stderr) if values.json else contextlib.nullcontext():
        report = find_batch_size(
            reference_of_workload(values),
            search=search,
            on_trial=_show_nothing if values.quiet else _show,
            **workload_options(values, parameters),
            **fixed_fields(values),
        )
    if values.out is not None:
        report.save(values.out)
    if values.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        _print(report)
    if report.was_interrupted:
        return INTERRUPTED
    return 0 if report.largest is not None else _NOTHING_FITS


def _show(trial: BatchTrial) -> None:
    candidate = trial.candidate
    memory = "" if candidate.peak_bytes is None else f", {mebibytes(candidate.peak_bytes)}"
    said = candidate.failure or ("fits" if trial.fits else "does not fit")
    print(f"{trial.replica_batch_size:,} examples per replica: {said}{memory}", file=sys.stderr)


def _show_nothing(trial: BatchTrial) -> None:
    """Shows no progress."""


def _print(report: BatchReport) -> None:
    table = Table(title=f"Batch sizes of {report.workload}, tried in {report.seconds:.0f} s", title_justify="left")
    for heading in report.headings:
        table.add_column(heading, overflow="fold")
    for row in report.rows():
        table.add_row(*(Text(text) for text in row))
    console = table_console()
    console.print(table)
    if report.memory_limit_bytes is not None:
        text = f"Memory limit: {mebibytes(report.memory_limit_bytes)}, {report.head_room:.0%} of it left free."
        console.print(Text(text))
    console.print(Text(report.stopped_because))
    console.print(Text(report.recommendation))


if __name__ == "__main__":
    sys.exit(run(["find-batch-size", *sys.argv[1:]]))
