"""Makes smaller variants of a run's model, compares them with it, and selects the smallest acceptable one.

    tfaccel compress --run_dir=runs/digits
    tfaccel compress --run_dir=runs/digits --methods=float16,dynamic,int8,qat,prune+int8 --max_metric_drop=0.01

The results are in the folder `compressed` of the run directory: the table (`report.json`), a plot, all variants, and
the smallest one within the limit as `model.tflite`. A variant must be within the limit with --confidence (95 %), given
the number of held-out examples. Exit status 0: a variant was selected; 1: none passed; 3: undecided, since there are
too few examples (the summary says how many are needed); 2: bad input.
"""

import contextlib
import json
import os
import sys
from functools import partial
from typing import Any

from absl import flags
from rich.table import Table
from rich.text import Text

from tfaccel.compressing.compress_options import CompressOptions
from tfaccel.compressing.compress_result import HEADINGS, CompressResult, cells, get_notes, sensitivity_cells
from tfaccel.planning.load_workload import check_finished_run
from tfaccel.processes.quiet_start import quiet_tensorflow
from tfaccel.scripts.command import run_command, show_progress, table_console
from tfaccel.scripts.compress_flags import compress_flags, compress_options, run_dir

TOO_FEW_EXAMPLES = 3  # exit status


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values = compress_flags()
    return run_command(lambda: _main(values), argv, values, description=(__doc__ or "").strip())


def _main(values: flags.FlagValues) -> int:
    directory, options = run_dir(values), compress_options(values)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    CompressOptions.of(options)
    check_finished_run(directory)
    quiet_tensorflow()
    from tfaccel.compressing.compress import compress

    if not values.quiet:
        options["progress"] = partial(show_progress, "compress")
    with contextlib.redirect_stdout(sys.stderr):
        result = compress(directory, **options)
    show_progress("compress", "")
    if values.json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        print_result(result)
    if result.winner is not None:
        return 0
    return TOO_FEW_EXAMPLES if result.is_undecided else 1


def print_result(result: CompressResult) -> None:
    """Prints the table of all variants, each layer's sensitivity, and the summary."""
    console = table_console()
    better = "lower" if result.lower_is_better else "higher"
    table = Table(title=f"{result.metric} ({better} is better) on {result.held_out}", title_justify="left")
    for heading in HEADINGS:
        justify: Any = "left" if heading in ("variant", "result") else "right"
        name = heading.replace("METRIC", result.metric.replace("_", "_\n"))
        table.add_column(name, justify=justify, overflow="fold", no_wrap=heading not in ("METRIC", "result"))
    for one in result.results:
        table.add_row(*(Text(cell) for cell in cells(result, one)))
    console.print(table)
    for line in [line for one in result.results for line in get_notes(result, one)]:
        console.print(Text(line))
    if result.sensitivity:
        costs = Table(title="Sensitivity of each layer alone in int8, highest first", title_justify="left")
        for heading in ("layer", f"{result.metric} drop", "output change", "operations"):
            costs.add_column(heading, justify="left" if heading in ("layer", "operations") else "right")
        for cost in result.sensitivity:
            costs.add_row(*(Text(cell) for cell in sensitivity_cells(cost)))
        console.print(costs)
    for line in result.summary():
        console.print(Text(line))


if __name__ == "__main__":
    sys.exit(run(["compress", *sys.argv[1:]]))
