"""Measures how close a recipe or your own workload comes to the limits of this machine.

    tfaccel roofline                                              # the machine's limits alone
    tfaccel roofline --recipe=image_classification
    tfaccel roofline --recipe=image_classification --write=roofline.png --report=roofline.json
    tfaccel roofline --workload=my_project.digits:workload --dtype_policy=mixed_bfloat16 --global_batch_size=256

The machine's limits are the speed of large matrix products in each dtype, and that of copying memory. They are
measured once for a plan's device and environment, and kept in TFACCEL_CACHE or ~/.cache/tfaccel; `tfaccel
train` with such a plan then reports MFU. The operations of a step are counted from its graph, and its time is measured
in a process of its own. Run nothing else meanwhile: other programs disturb the measurements.
"""

import contextlib
import json
import sys

from absl import flags
from rich.table import Table
from rich.text import Text

from tfaccel.errors import PlanError
from tfaccel.measuring.roofline import LAYER_HEADINGS, Roofline
from tfaccel.planning.machine_ceilings import MachineCeilings
from tfaccel.scripts.command import check_picture, check_writable, table_console
from tfaccel.scripts.command_flags import Flag, command_flags
from tfaccel.scripts.plan_flags import fixed_fields
from tfaccel.scripts.train_flags import workload_options
from tfaccel.scripts.workload_command import run_workload_command
from tfaccel.scripts.workload_flags import reference_of_workload
from tfaccel.scripts.workload_parameters import WorkloadParameters

_FLAGS: dict[str, Flag] = {
    "limit_seconds": (300.0, "time limit for each of: measuring the machine, building the model, one timed window"),
    "write": (str, "draw the roofline into this PNG file"),
    "report": (str, "write everything that was measured to this JSON file"),
    "again": (False, "measure the machine's limits again, even if they are kept"),
    "quiet": (False, "show no progress"),
    "json": (False, "print JSON"),
}


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values = command_flags(_FLAGS)
    return run_workload_command(_main, argv, values, description=(__doc__ or "").strip())


def _main(values: flags.FlagValues, parameters: WorkloadParameters) -> int:
    if not values.limit_seconds > 0:
        raise PlanError(f"--limit_seconds must be positive. Received: --limit_seconds={values.limit_seconds:g}.")
    check_picture("write", values.write)
    check_writable("report", values.report)
    if values.recipe is None and values.workload is None:
        return _only_ceilings(values, parameters)
    from tfaccel.measuring.roofline import roofline

    with contextlib.redirect_stdout(sys.stderr) if values.json else contextlib.nullcontext():
        found = roofline(
            reference_of_workload(values),
            measure_again=values.again,
            limit_seconds=values.limit_seconds,
            on_progress=_silent if values.quiet else _show,
            **workload_options(values, parameters),
            **fixed_fields(values),
        )
    if values.report is not None:
        found.save(values.report)
    if values.json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        _print(found)
    if values.write is not None:  # last: without matrix products, it is refused
        from tfaccel.reporting.charts import save_roofline_picture

        save_roofline_picture(values.write, found)
    return 0


def _only_ceilings(values: flags.FlagValues, parameters: WorkloadParameters) -> int:
    from tfaccel.measuring.ceilings import ceilings_of_plan

    given = [name for name in ("write", "report") if values[name].value is not None]
    given += workload_options(values, parameters)
    if given:
        raise PlanError(
            f"--{given[0]} needs a workload. Give --recipe=NAME or --workload=package.module:function as well."
        )
    found = ceilings_of_plan(
        fixed_fields(values),
        measure_again=values.again,
        limit_seconds=values.limit_seconds,
        on_progress=_silent if values.quiet else _show,
    )
    if values.json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        table_console().print(_ceilings_table(found))
        if found.doubt:
            table_console().print(Text(found.doubt))
    return 0


def _show(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _silent(text: str) -> None:
    """Shows no progress."""


def _ceilings_table(ceilings: MachineCeilings) -> Table:
    title = f"Limits of one {ceilings.device} of this machine, measured {ceilings.measured}"
    table = Table("what", "speed", "ridge", title=title, title_justify="left")
    for name, speed in ceilings.matrix_flops_per_second.items():
        ridge = f"{speed / ceilings.bytes_per_second:.3g} FLOP/byte"
        table.add_row(f"matrix products, {name}", f"{speed / 1e9:,.0f} GFLOP/s", ridge)
    table.add_row("memory, read and written", f"{ceilings.bytes_per_second / 1e9:,.1f} GB/s", "")
    return table


def _print(roofline: Roofline) -> None:
    console = table_console()
    console.print(_ceilings_table(roofline.ceilings))
    table = Table(title=f"A step of {roofline.workload}, by layer", title_justify="left")
    for heading in LAYER_HEADINGS:
        table.add_column(heading, overflow="fold")
    for row in roofline.rows():
        table.add_row(*(Text(text) for text in row))
    console.print(table)
    cost = roofline.cost
    console.print(
        Text(
            f"A step computes {cost.matrix_flops / 1e9:,.3g} GFLOP in matrix products and convolutions, and takes "
            f"{1e3 * roofline.step_seconds:,.3g} ms; at the limits, {1e3 * roofline.least_seconds:,.3g} ms."
        )
    )
    if cost.num_unsized:
        console.print(Text(f"{cost.num_unsized} tensors of unknown size were not counted."))
    console.print(Text(roofline.text))


if __name__ == "__main__":
    sys.exit(run(["roofline", *sys.argv[1:]]))
