"""Writes one HTML page about runs, searches and compressed variants, which opens in any browser without a network.

    tfaccel report runs/digits
    tfaccel report runs/digits runs/wider --output=digits.html         # several runs side by side
    tfaccel report runs/search                                         # a search of `tfaccel search`
    tfaccel report runs/digits --autotune_report=autotune.json     # with the plans that `tfaccel find-fastest` measured

It shows the verdict, learning curves, throughput, memory and utilization, the plan with its reasons, the measured
plans, the recipe's pictures, the trials of a search, compressed variants, and the machine, as far as the directories
hold them. What is damaged is left out and named on the page. Needs `pip install 'tfaccel[report]'`.
"""

import json
import sys

from absl import flags

from tfaccel.html_report.write_report import WrittenReport, write_report
from tfaccel.scripts.command import run_command
from tfaccel.scripts.command_flags import Flag, command_flags

_FLAGS: dict[str, Flag] = {
    "output": ("report.html", "the HTML file to write; an earlier one is replaced"),
    "autotune_report": (
        str,
        "a file of `tfaccel find-fastest --report=FILE`; without it, the measurements kept in TFACCEL_CACHE are shown "
        "if they chose a run's plan",
    ),
    "roofline": (
        str,
        "a file of `tfaccel roofline --report=FILE`; without it, those kept of the runs' workloads and plans",
    ),
    "quiet": (False, "print nothing but errors"),
    "json": (False, "print what was written as JSON"),
}


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values = command_flags(_FLAGS)
    run_dirs: list[str] = []
    return run_command(
        lambda: _main(values, run_dirs),
        argv,
        values,
        description=(__doc__ or "").strip(),
        positional=("RUN_DIR ...", run_dirs),
    )


def _main(values: flags.FlagValues, run_dirs: list[str]) -> int:
    report = write_report(
        *run_dirs, output=values.output, autotune_report=values.autotune_report, roofline=values.roofline
    )
    if values.json:
        print(json.dumps(report.to_json(), indent=2))
    elif not values.quiet:
        _print(report)
    return 0


def _print(report: WrittenReport) -> None:
    num_charts = sum(report.sections.values())
    print(f"{report.path}: {len(report.sections)} sections, {num_charts} charts, {report.num_bytes / 1e6:.1f} MB")


if __name__ == "__main__":
    sys.exit(run(["report", *sys.argv[1:]]))
