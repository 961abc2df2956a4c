"""Tests parity: N replicas must match plain Keras on one device with the same global batches.

    tfaccel test
    tfaccel test --coverage=values --replicas=4 --workers=3
    tfaccel test --only="batch_norm" --json

Trains small models both ways, in child processes on this machine's CPU, and compares all weights, optimizer state, loss
and metrics of every epoch, evaluation and predictions. If plain Keras is wrong, a correct model is the reference, and
the table names the fault. Dropout, and batch normalization without synchronization, are compared with one device that
processes each replica's rows separately. Exit status 1 if a case exceeds its tolerance.
"""

import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from absl import flags
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tfaccel.errors import TfaccelError
from tfaccel.parity.axes import CHECK_NAMES, covering_set, full_product
from tfaccel.parity.case import ParityCase, ParityCheck, ParityRow, Placement
from tfaccel.parity.run_cases import run_cases
from tfaccel.scripts.command import run_command, table_console
from tfaccel.scripts.command_flags import Flag, command_flags

_FLAGS: dict[str, Flag] = {
    "all": (False, "same as --coverage=all"),
    "shard": ("0/1", "K/N: run every Nth case, starting at K, to split a long run across machines"),
    "only": ("", "run only cases whose name contains this text"),
    "json": (False, "print the rows as JSON"),
}
_COVERAGE = (
    "values: each value of each axis under both strategies, about a minute; pairs: every pair of values, minutes; "
    "triples: half an hour; all: every combination, which takes days (see --shard)"
)


def parity_flags() -> flags.FlagValues:
    """The flags of the command, not parsed yet."""
    values = command_flags(_FLAGS)
    bounds: dict[str, Any] = {"lower_bound": 1, "upper_bound": 64, "flag_values": values}
    flags.DEFINE_integer("replicas", 2, "replicas of the MirroredStrategy", **bounds)
    flags.DEFINE_integer("workers", 2, "processes of the MultiWorkerMirroredStrategy", **bounds)
    flags.DEFINE_enum("coverage", "pairs", ["values", "pairs", "triples", "all"], _COVERAGE, flag_values=values)
    return values


def run(argv: list[str]) -> int:
    """Runs `tfaccel test`; returns its exit status."""
    values = parity_flags()
    return run_command(lambda: _main(values), argv, values, description=(__doc__ or "").strip())


def _main(values: flags.FlagValues) -> int:
    cases = chosen_cases(values)
    started = time.monotonic()
    rows = run_with_progress(cases)
    num_failed = sum(not row.ok for row in rows)
    if values.json:
        print(json.dumps({"rows": [row.to_json() for row in rows]}, indent=2))
    else:
        print_rows(rows)
        print(f"\n{len(rows)} cases, {num_failed} failed, in {time.monotonic() - started:.0f} s")
    return 1 if num_failed else 0


def chosen_cases(values: flags.FlagValues) -> list[ParityCase | ParityCheck]:
    """The cases that the flags select."""
    placements = [Placement("mirrored", values.replicas), Placement("multi_worker", values.workers)]
    number, count = _shard(values.shard)
    chosen: list[ParityCase | ParityCheck] = [
        ParityCheck(placement, name) for name in CHECK_NAMES for placement in placements
    ]
    chosen += covered_cases("all" if values.all else values.coverage, placements)
    chosen = [case for case in chosen if values.only in case.name][number::count]
    if not chosen:
        raise TfaccelError(f"No case matches. Received: --only={values.only!r}, --shard={values.shard}.")
    return chosen


def covered_cases(coverage: str, placements: Sequence[Placement]) -> Iterable[ParityCase]:
    """The cases of a coverage (see --coverage)."""
    if coverage == "all":
        return full_product(placements)
    if coverage == "values":
        return [case for placement in placements for case in covering_set([placement], num_axes=1)]
    return covering_set(placements, num_axes={"pairs": 2, "triples": 3}[coverage])


def _shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if number.isdecimal() and count.isdecimal() and int(number) < int(count):
        return int(number), int(count)
    raise TfaccelError(f"--shard is written K/N, with K from 0 to N - 1. Received: --shard={text}.")


def run_with_progress(cases: Sequence[ParityCase | ParityCheck]) -> list[ParityRow]:
    """Runs the cases, with progress on standard error."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("training", total=len(cases))

        def show(row: ParityRow) -> None:
            progress.advance(task)
            if not console.is_terminal:
                outcome = "ok" if row.ok else "FAILED"
                print(f"tfaccel test: {outcome}: {row.strategy}: {row.case}", file=sys.stderr, flush=True)

        return run_cases(cases, on_row=show)


def print_rows(rows: Sequence[ParityRow]) -> None:
    """Prints a table of all rows, the faults of plain Keras, and failures."""
    console = table_console()
    table = Table(box=None, pad_edge=False)
    for title in ("strategy", "case", "difference", "tolerance", ""):
        table.add_column(title, overflow="fold", no_wrap=title != "case", justify="left")
    faults = list(dict.fromkeys(row.fault for row in rows if row.fault))
    for row in rows:
        name = Text(row.case)
        if row.fault:
            name.append(f" [{faults.index(row.fault) + 1}]", style="dim")
        difference = "none" if row.max_abs_diff is None else f"{row.max_abs_diff:.1e}"
        outcome = Text("ok", style="green") if row.ok else Text("FAILED", style="bold red")
        table.add_row(row.strategy, name, difference, f"{row.tolerance:.1e}", outcome)
    console.print(table)
    console.print("\nDifference: the maximum over all values, relative to the largest of its array if that exceeds 1.")
    for number, fault in enumerate(faults, start=1):
        console.print(Text(f"[{number}] {fault}"), soft_wrap=True)
    for row in rows:
        if not row.ok:
            console.print(Text.assemble("\n", ("failed: ", "bold red"), f"{row.strategy}: {row.case}: {row.note}"))


if __name__ == "__main__":
    sys.exit(run(["test", *sys.argv[1:]]))
