"""Checks the installation and whether every device computes correctly; suggests a remedy for each problem.

    tfaccel doctor
    tfaccel doctor --json
    tfaccel doctor --tpu_ready --recipe=image_classification --tpu=v5e
    tfaccel doctor --tpu_ready --workload=my_project.digits:workload --tpu=v5e-8 --global_batch_size=1024

With --tpu_ready: checks, without a TPU, whether the train step of a recipe or workload can run on one, and what
prevents it. Each probe runs in a child process, which may crash or hang. Exit status 1 if a check failed.
"""

import json
import os
import sys
from collections.abc import Callable

from absl import flags
from rich.table import Table
from rich.text import Text

from tfaccel.errors import TfaccelError
from tfaccel.extras.tpu.readiness import StepSource, check_tpu_readiness, parse_tpu
from tfaccel.hardware.doctor import Check, Examination
from tfaccel.hardware.doctor_installation import examine
from tfaccel.hardware.machine import Machine
from tfaccel.planning.workload import Workload
from tfaccel.scripts.command import run_command, show_progress, table_console
from tfaccel.scripts.command_flags import Flag, command_flags
from tfaccel.scripts.plan_flags import AUTO
from tfaccel.scripts.workload_flags import chosen_workload, define_workload_flags
from tfaccel.scripts.workload_parameters import COUNT, get_value

_FLAGS: dict[str, Flag] = {
    "json": (False, "print the checks as JSON"),
    "tpu_ready": (False, "check whether the train step of --recipe or --workload can run on a TPU"),
    "tpu": (str, "with --tpu_ready: TPU generation, optionally with cores: v5e, v5e-8 (default: one core of each)"),
    "global_batch_size": (AUTO, "with --tpu_ready: batch size over all cores, or auto: the workload's own"),
}

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}


def run(argv: list[str]) -> int:
    """Runs `tfaccel doctor`; returns its exit status."""
    values = command_flags(_FLAGS)
    define_workload_flags(values)
    text = "time limit of a probe in seconds; the TPU compiler gets five times as long per program"
    flags.DEFINE_float("time_limit_seconds", 120.0, text, lower_bound=0.1, flag_values=values)
    return run_command(lambda: _main(values), argv, values, description=(__doc__ or "").strip())


def _main(values: flags.FlagValues) -> int:
    names = ("recipe", "workload", "tpu", "global_batch_size")
    given = [name for name in names if values[name].value not in (None, AUTO)]
    if given and not values.tpu_ready:
        raise TfaccelError(f"--{given[0]} is for --tpu_ready. Add --tpu_ready, or drop --{given[0]}.")
    examination = Examination(Machine.here(), values.time_limit_seconds, show_trying)
    run_checks = _tpu_readiness(examination, values) if values.tpu_ready else lambda: examine(examination)
    try:
        checks = run_checks()
    finally:
        show_trying("")
    if values.json:
        print(json.dumps({"checks": [check.to_json() for check in checks]}, indent=2))
    else:
        print_checks(checks)
    return 1 if any(check.status == "fail" for check in checks) else 0


def _tpu_readiness(examination: Examination, values: flags.FlagValues) -> Callable[[], list[Check]]:
    """Returns a function that runs the checks of --tpu_ready; the flags are checked now."""
    target = parse_tpu(values.tpu)
    workload = chosen_workload(values)
    recipe, import_path = values.recipe, values.workload
    source = StepSource(
        kind="workload" if recipe is None else "recipe",
        name=str(recipe or import_path),
        folder=os.getcwd(),
        global_batch_size=_global_batch_size(workload, str(values.global_batch_size)),
        num_train_examples=workload.num_train_examples,
    )
    return lambda: list(check_tpu_readiness(examination, source, target))


def _global_batch_size(workload: Workload, text: str) -> int:
    """The value of --global_batch_size, or the workload's."""
    if text == AUTO:
        return workload.global_batch_size
    size = int(get_value("global_batch_size", text, COUNT))
    if size > (workload.num_train_examples or size):
        raise TfaccelError(
            f"--global_batch_size={size} is larger than the number of training examples, {workload.num_train_examples}."
        )
    return size


def show_trying(text: str) -> None:
    """Shows what is being tried; "" clears it."""
    show_progress("tfaccel doctor", text and f"trying {text} ...")


def print_checks(checks: list[Check]) -> None:
    """Prints a table of all checks, then the remedies, unwrapped so that commands can be copied."""
    console = table_console()
    table = Table(box=None, pad_edge=False)
    for title in ("check", "status", "detail"):
        table.add_column(title, overflow="fold", no_wrap=title != "detail")
    for check in checks:
        table.add_row(Text(check.name), Text(check.status, style=_STYLES[check.status]), Text(check.detail))
    console.print(table)
    faults = [check for check in checks if check.remedy]
    if faults:
        console.print(Text("\nremedies:"))
    for check in faults:
        line = Text.assemble("  ", (check.name, _STYLES[check.status]), ": ", check.remedy)
        console.print(line, soft_wrap=True)
    num_failed = sum(check.status == "fail" for check in checks)
    num_warned = sum(check.status == "warn" for check in checks)
    console.print(Text(f"\n{len(checks)} checks, {num_failed} failed, {num_warned} warnings"))


if __name__ == "__main__":
    sys.exit(run(sys.argv))
