"""Inspects a dataset, without changing it.

tfaccel inspect-data --data_dir=customers.csv --target=stays
tfaccel inspect-data --data_dir=photos                      # a folder with one subfolder per class
tfaccel inspect-data --data_dir=reviews.csv --text_column=review --target=stars --json

It reports missing values, constant and correlated columns, duplicates and leaks between the training and test splits,
unreadable files, probable label errors, and suggested class weights. Exit status 0 if the data could be read, whatever
was found; 2 otherwise.
"""

import json
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from absl import flags
from rich.table import Table as TextTable

from tfaccel.errors import DataError, printable
from tfaccel.extras.inspection.findings import InspectionReport
from tfaccel.extras.inspection.inspect_data import inspect_data
from tfaccel.scripts.command import run_command, table_console
from tfaccel.scripts.command_flags import Flag, command_flags

if TYPE_CHECKING:
    from rich.console import Console

_TEXTS: dict[str, Flag] = {
    "data_dir": (str, "a table (.csv, .tsv, .parquet), a .npz or text file, a folder of classes, or in COCO format"),
    "target": (str, "column of a table to predict; without it, classes and labels are not inspected"),
    "text_column": (str, "column of a table that holds texts"),
    "column_kinds": (
        "",
        "column kinds that override the detected ones: NAME=KIND,...; numeric, categorical, date, ignored",
    ),
    "encoding": ("utf-8", "encoding of CSV and text files"),
}
_QUIET_SECONDS = 2.0  # before progress is shown
_MAX_COLUMNS_SHOWN = 40
_MAX_CLASSES_SHOWN = 30
_MAX_FINDINGS_SHOWN = 10  # per kind
_MAX_TEXT_LENGTH = 300  # characters


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values = command_flags({**_TEXTS, "json": (False, "print the output as JSON")})
    return run_command(lambda: _main(values), argv, values, description=(__doc__ or "").strip())


def _main(values: flags.FlagValues) -> int:
    options: dict[str, Any] = {name: values[name].value for name in _TEXTS}
    path = options.pop("data_dir")
    if not path:
        raise DataError("Give --data_dir=PATH, the file or folder to inspect.")
    progress = _Progress()
    try:
        report = inspect_data(path, progress=progress, **options)
    finally:
        progress.close()
    if values.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        _print(report)
    return 0


class _Progress:
    """Shows progress as one line on standard error, after two seconds."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._width = 0

    def __call__(self, text: str, done: int, total: int) -> None:
        if time.monotonic() - self._start >= _QUIET_SECONDS:
            line = f"{text} ..." if total <= 1 else f"{text}: {done:,} of {total:,}"
            self._show(line)

    def close(self) -> None:
        if self._width:
            self._show("")
            print(end="\r", file=sys.stderr, flush=True)

    def _show(self, line: str) -> None:
        print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = max(self._width, len(line))


def _print(report: InspectionReport) -> None:
    console = table_console(highlight=False)
    sizes = ", ".join(f"{count:,} to {part}" for part, count in report.num_examples.items())
    console.print(f"{printable(report.path)}: {report.kind}, {sizes}; each {report.shape}.")
    verdict = "fits" if report.fits_in_memory else "does not fit"
    console.print(
        f"In memory: {report.num_bytes / 2**20:,.1f} MiB; it {verdict} (free: {report.memory_bytes / 2**30:.1f} GiB)."
    )
    if report.columns:
        _print_columns(report, console)
    if report.class_counts:
        table = _table("class", "examples to train on", "weight to use")
        for name, count in list(report.class_counts.items())[:_MAX_CLASSES_SHOWN]:
            table.add_row(printable(name), f"{count:,}", f"{report.class_weights[name]:.3g}")
        _print_table(table, console, len(report.class_counts) - _MAX_CLASSES_SHOWN)
    console.print(f"\nFound: {len(report.findings)}" if report.findings else "\nFound nothing to worry about.")
    num_shown = Counter[str]()
    for finding in report.findings:
        num_shown[finding.kind] += 1
        if num_shown[finding.kind] <= _MAX_FINDINGS_SHOWN:
            advice = printable(finding.advice)
            console.print(f"  {finding.kind}: {_cut(finding.where)}: {_cut(finding.text)}. {advice}".rstrip())
    for kind, count in num_shown.items():
        if count > _MAX_FINDINGS_SHOWN:
            console.print(f"  {kind}: and {count - _MAX_FINDINGS_SHOWN} more; --json lists all")


def _cut(text: str) -> str:
    """Shortens a long text, and escapes control characters in it; the JSON output has all of it."""
    text = printable(text)
    return text if len(text) <= _MAX_TEXT_LENGTH else f"{text[:_MAX_TEXT_LENGTH]} ..."


def _print_columns(report: InspectionReport, console: "Console") -> None:
    table = _table("column", "kind", "missing", "different", "lowest", "median", "highest")
    for name, about in list(report.columns.items())[:_MAX_COLUMNS_SHOWN]:
        numbers = [f"{about[key]:.6g}" if key in about else "" for key in ("min", "median", "max")]
        table.add_row(
            printable(name), about["kind"], f"{about['num_missing']:,}", f"{about['num_distinct']:,}", *numbers
        )
    _print_table(table, console, len(report.columns) - _MAX_COLUMNS_SHOWN)


def _table(first: str, *others: str) -> TextTable:
    table = TextTable(box=None, pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="left" if name == "kind" else "right", no_wrap=True)
    return table


def _print_table(table: TextTable, console: "Console", num_more: int) -> None:
    console.print()
    console.print(table)
    if num_more > 0:
        console.print(f"and {num_more} more; --json lists all")


if __name__ == "__main__":
    sys.exit(run(["inspect-data", *sys.argv[1:]]))
