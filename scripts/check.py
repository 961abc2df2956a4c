"""Compares your own training script on one device and on several replicas, with plain Keras and with tfaccel.

    tfaccel check train.py
    tfaccel check train.py --replicas=4 --steps=20
    tfaccel check train.py -- --epochs=3        # arguments of the script follow --

The script runs unchanged, three times, up to its first call of `Model.fit`: by itself on one device; in the scope of a
`MirroredStrategy` over logical CPUs; and there with `tfaccel.fit` in its place. Each trains the first few steps of the
same batches in order, without callbacks and validation. The table shows how far loss and weights are from one device's,
the first weight that differs, and the speed. Layers that draw random numbers draw none. No GPU is used.

Exit status 1 if tfaccel differs from one device.
"""

import json
import sys
from functools import partial
from typing import Any

from absl import flags
from rich.table import Table
from rich.text import Text

from tfaccel.errors import TfaccelError
from tfaccel.scripts.command import run_command, show_progress, table_console
from tfaccel.scripts.command_flags import Flag, command_flags
from tfaccel.training.check import CheckResult, check_script

_FLAGS: dict[str, Flag] = {
    "limit_seconds": (300.0, "time limit of each of the three runs"),
    "json": (False, "print JSON"),
}


def run(argv: list[str]) -> int:
    """Runs `tfaccel check`; returns its exit status."""
    values, rest = command_flags(_FLAGS), list[str]()
    bounds: dict[str, Any] = {"lower_bound": 1, "flag_values": values}
    flags.DEFINE_integer("replicas", 2, "replicas of the MirroredStrategy", upper_bound=16, **bounds)
    flags.DEFINE_integer("steps", 10, "steps to train", upper_bound=1000, **bounds)
    return run_command(
        lambda: _main(values, rest),
        argv,
        values,
        description=(__doc__ or "").strip(),
        positional=("SCRIPT.py", rest),
    )


def _main(values: flags.FlagValues, rest: list[str]) -> int:
    if not rest:
        raise TfaccelError("no script was named. Use `tfaccel check SCRIPT.py`, a file that calls `Model.fit`.")
    progress = partial(show_progress, "check")
    try:
        found = check_script(
            rest[0],
            rest[1:],
            num_replicas=values.replicas,
            num_steps=values.steps,
            time_limit_seconds=values.limit_seconds,
            progress=progress,
        )
    finally:
        progress("")
    if values.json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        print_result(rest[0], found)
    return 0 if found.is_equal else 1


def print_result(script: str, found: CheckResult) -> None:
    """Prints the table, and what is known to differ with plain Keras."""
    table = Table(title=f"{script}: {found.num_steps} steps", title_justify="left")
    for heading in ("", "loss", "loss differs by", "weights differ by", "first weight that differs", "steps/s"):
        right = heading in ("loss", "loss differs by", "weights differ by", "steps/s")
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for row in found.rows:
        if row.failure:
            table.add_row(row.way, Text("failed", style="bold red"), "", "", Text(row.failure), "")
            continue
        style = "" if row.weight_difference is None else "bold red" if row.first_different else "green"
        table.add_row(
            row.way,
            f"{row.losses.get('loss', 0.0):.6g}",
            "" if row.loss_difference is None else Text(f"{row.loss_difference:.1e}", style=style),
            "" if row.weight_difference is None else Text(f"{row.weight_difference:.1e}", style=style),
            Text(row.first_different or ("" if row.weight_difference is None else "none")),
            f"{row.steps_per_second:.1f}",
        )
    table_console().print(table)
    if found.causes:
        print(f"In this script: {'; '.join(found.causes)}.")


if __name__ == "__main__":
    sys.exit(run(["check", *sys.argv[1:]]))
