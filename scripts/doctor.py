"""Proves what works here: the installation, and that every device computes right; names the remedy for what does not.

    tfaccel doctor
    tfaccel doctor --json
    tfaccel doctor --tpu_ready --recipe=image_classification --tpu=v5e
    tfaccel doctor --tpu_ready --workload=my_project.digits:workload

With --tpu_ready: whether the train step of a recipe or workload can run on a TPU, and what hinders it, without a TPU.
Each probe runs in a child process, which may crash or hang. Exit status 1 if a check failed.
"""

import json
import os
import sys
from collections.abc import Callable

from absl import flags
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tfaccel.errors import TfaccelError
from tfaccel.hardware.doctor import examine
from tfaccel.hardware.doctor_check import Check
from tfaccel.hardware.doctor_examination import Examination
from tfaccel.hardware.machine import Machine
from tfaccel.scripts.command import run_command
from tfaccel.scripts.workload_flags import chosen_workload, define_workload_flags
from tfaccel.tpu.generations import parse_tpu
from tfaccel.tpu.readiness import StepSource, check_tpu_readiness

_JSON = flags.DEFINE_bool("json", False, "print the checks as JSON", allow_override=True)
_TIME_LIMIT_SECONDS = flags.DEFINE_float(
    "time_limit_seconds", 120.0, "how long a single probe may take", lower_bound=0.1, allow_override=True
)

_TPU_READY = flags.DEFINE_bool(
    "tpu_ready", False, "look whether the train step of --recipe or --workload can run on a TPU", allow_override=True
)
define_workload_flags()
_TPU = flags.DEFINE_string(
    "tpu",
    None,
    "with --tpu_ready: the kind of TPU, and how many cores: v5e, v5e-8 (default: one core of each kind)",
    allow_override=True,
)

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}


def run(argv: list[str]) -> int:
    """Runs `tfaccel doctor`; returns its exit status."""
    return run_command(_main, argv, description=(__doc__ or "").strip())


def _main() -> int:
    given = [name for name in ("recipe", "workload", "tpu") if flags.FLAGS[name].value is not None]
    if given and not _TPU_READY.value:
        raise TfaccelError(f"--{given[0]} is for --tpu_ready. Add --tpu_ready, or drop --{given[0]}.")
    examination = Examination(Machine.here(), _TIME_LIMIT_SECONDS.value, show_progress)
    run_checks = _tpu_readiness(examination) if _TPU_READY.value else lambda: examine(examination)
    try:
        checks = run_checks()
    finally:
        show_progress("")
    if _JSON.value:
        print(json.dumps({"checks": [check.to_json() for check in checks]}, indent=2))
    else:
        print_checks(checks, Console())
    return 1 if any(check.status == "fail" for check in checks) else 0


def _tpu_readiness(examination: Examination) -> Callable[[], list[Check]]:
    """The checks of --tpu_ready, to be run; what the flags say is looked at now."""
    target = parse_tpu(_TPU.value)
    workload = chosen_workload()
    recipe, import_path = flags.FLAGS["recipe"].value, flags.FLAGS["workload"].value
    source = StepSource(
        kind="workload" if recipe is None else "recipe",
        name=str(recipe or import_path),
        folder=os.getcwd(),
        global_batch_size=workload.global_batch_size,
        num_train_examples=workload.num_train_examples,
    )
    return lambda: list(check_tpu_readiness(examination, source, target))


def show_progress(text: str) -> None:
    """One line on standard error: rewritten on a terminal, else a new one each time; "" clears it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text and f'trying {text} ...'}")
        sys.stderr.flush()
    elif text:
        print(f"tfaccel doctor: trying {text} ...", file=sys.stderr, flush=True)


def print_checks(checks: list[Check], console: Console) -> None:
    """A table of all checks, then the remedies, unwrapped so that commands can be copied."""
    table = Table(box=None, pad_edge=False)
    for title in ("check", "status", "detail"):
        table.add_column(title, overflow="fold", no_wrap=title != "detail")
    for check in checks:
        table.add_row(Text(check.name), Text(check.status, style=_STYLES[check.status]), Text(check.detail))
    console.print(table)
    faults = [check for check in checks if check.remedy]
    if faults:
        console.print(Text("\nwhat to do:"))
    for check in faults:
        line = Text.assemble("  ", (check.name, _STYLES[check.status]), ": ", check.remedy)
        console.print(line, soft_wrap=True)
    num_failed = sum(check.status == "fail" for check in checks)
    num_warned = sum(check.status == "warn" for check in checks)
    console.print(Text(f"\n{len(checks)} checks, {num_failed} failed, {num_warned} with a warning"))


if __name__ == "__main__":
    sys.exit(run(sys.argv))
