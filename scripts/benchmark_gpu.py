"""Measures tfaccel on an NVIDIA GPU, in steps that write their results as they go.

    tfaccel benchmark gpu
    tfaccel benchmark gpu --minutes=7     # in that time; the same command continues later
    tfaccel benchmark gpu --steps=transformer_choice,transformer
    tfaccel benchmark gpu --out=rehearsal --rehearse

Each step runs in a process of its own, for at most two minutes. A crash, a hang and running out of memory are results
with their cause, and the next step goes on. The results of a step are in `CARD/NAME.json` in the folder, its output in
`NAME.log`. The same command continues: steps that ended, or failed, are not run again, unless with --again. The order
is that of importance: the machine, parity, the figures, then everything else; a step that is expected to take longer
than is left is passed over. PyTorch is compared with if it is installed. Run nothing else on the machine.

With --rehearse, every step runs on two logical CPUs with tiny models, and no figure is judged.

Exit status 1 if a figure is missed, or a step failed.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

from absl import flags
from rich.table import Table
from rich.text import Text

from tfaccel.benchmarks.gpu.step import Step
from tfaccel.benchmarks.gpu.step_result import StepResult
from tfaccel.benchmarks.gpu.steps import STEPS, chosen_steps
from tfaccel.benchmarks.gpu.suite import GpuOptions, get_machine, make_report, run_gpu_suite
from tfaccel.errors import TfaccelError
from tfaccel.files import write_json
from tfaccel.scripts.benchmark_table import print_report
from tfaccel.scripts.command import MAX_SECONDS, run_command, show_progress, table_console
from tfaccel.scripts.command_flags import Flag, command_flags

REPORT = "report.json"
_STYLES = {"done": "green", "failed": "bold red"}
_FLAGS: dict[str, Flag] = {
    "steps": (["all"], f"steps to run, in the suite's order; or all: {', '.join(step.name for step in STEPS)}"),
    "out": ("gpu_benchmark", "folder of the results; it is made if its parent exists"),
    "again": (False, "run steps that have a result as well"),
    "rehearse": (False, "run on two logical CPUs with tiny models; nothing is judged"),
    "json": (False, "print the report as JSON"),
}


def gpu_flags() -> flags.FlagValues:
    """The flags of the command, not parsed yet."""
    values = command_flags(_FLAGS)
    text = "minutes for all steps together; what is left out then runs when the command is called again"
    flags.DEFINE_float("minutes", None, text, lower_bound=0.1, upper_bound=MAX_SECONDS / 60, flag_values=values)
    return values


def run(argv: list[str]) -> int:
    """Runs `tfaccel benchmark gpu`; returns its exit status."""
    values = gpu_flags()
    return run_command(lambda: _main(values), argv, values, description=(__doc__ or "").strip())


def _main(values: flags.FlagValues) -> int:
    steps = chosen_steps(values.steps)
    progress = partial(show_progress, "benchmark gpu")
    options = GpuOptions(
        out=Path(values.out),
        is_rehearsal=values.rehearse,
        again=values.again,
        time_limit_seconds=None if values.minutes is None else 60 * values.minutes,
        progress=progress,
    )
    make_folder(values.out, options)
    try:
        results = run_gpu_suite(steps, options)
    finally:
        progress("")
    ended = {result.step for result in results}
    steps = [step for step in STEPS if step in steps or step.name in ended]
    report = make_report(steps, results, options)
    options.folder.mkdir(exist_ok=True)
    write_json(options.folder / REPORT, report.to_json())
    if values.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print_steps(steps, results)
        print_report(report)
    return 0 if report.met and not any(result.status == "failed" for result in results) else 1


def make_folder(name: str, options: GpuOptions) -> None:
    """Makes the folder of the results, if need be and if there is something to measure.

    Raises:
        TfaccelError: if it cannot be written to, or as `get_machine`.
    """
    folder = Path(name)
    place = folder if folder.exists() else folder.parent
    problem = TfaccelError(f"--out: cannot write to {name!r}. Name a folder, or a new one in an existing folder.")
    if not name or not place.is_dir() or not os.access(place, os.W_OK):
        raise problem
    get_machine(options)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise problem from error


def print_steps(steps: list[Step], results: list[StepResult]) -> None:
    """Prints a table of the steps: how each ended, and how long it took."""
    by_name = {result.step: result for result in results}
    table = Table(title="Steps", title_justify="left")
    for heading in ("step", "status", "seconds", "what it does, or why it failed"):
        table.add_column(heading, overflow="fold", justify="right" if heading == "seconds" else "left")
    for step in steps:
        result = by_name.get(step.name)
        status = "did not run" if result is None else result.status
        seconds = "" if result is None else f"{result.seconds:.0f}"
        text = step.about if result is None or not result.cause else result.cause
        table.add_row(step.name, Text(status, style=_STYLES.get(status, "yellow")), seconds, Text(text))
    table_console().print(table)


if __name__ == "__main__":
    sys.exit(run(["benchmark gpu", *sys.argv[1:]]))
