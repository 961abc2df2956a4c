"""Predicts the speed, efficiency and cost of training on more devices, from the measured step of one.

    tfaccel estimate-scaling --recipe=image_classification --replicas=1,2,4,8,64 --interconnect=dgx_a100
    tfaccel estimate-scaling --recipe=image_classification --hardware=cluster.json --scaling=strong
    tfaccel estimate-scaling --workload=my_project.digits:workload --price_per_device_hour=2.5 --write=scaling.png

The step of one device is measured here, or given by --step_seconds. The sum of the gradients over the replicas takes
the time of a ring or hierarchical all-reduce in the latency-bandwidth model. Latencies and bandwidths come from a file
(--hardware), a table of published figures (--interconnect), or a measurement between two worker processes on this
machine, which is kept in TFACCEL_CACHE or ~/.cache/tfaccel. Stragglers, slow input and congestion are not modelled.
"""

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial

from absl import flags
from rich.table import Table
from rich.text import Text

from tfaccel.errors import HardwareError, PlanError
from tfaccel.extras.estimates.interconnect import KNOWN_INTERCONNECTS, Interconnect, known_interconnect
from tfaccel.extras.estimates.scaling import ScalingEstimate, ScalingOptions, ScalingRow, checked_replicas
from tfaccel.scripts.command import check_picture, show_progress, table_console
from tfaccel.scripts.command_flags import Flag, command_flags
from tfaccel.scripts.plan_flags import fixed_fields
from tfaccel.scripts.train_flags import workload_options
from tfaccel.scripts.workload_command import run_workload_command
from tfaccel.scripts.workload_flags import reference_of_workload
from tfaccel.scripts.workload_parameters import WorkloadParameters

_FLAGS: dict[str, Flag] = {
    "replicas": (["1", "2", "4", "8", "16", "32", "64"], "numbers of devices"),
    "hardware": (str, 'JSON file that describes an interconnect, alone or under "interconnect"'),
    "interconnect": (str, f"published figures: {', '.join(KNOWN_INTERCONNECTS)}"),
    "measure": (False, "measure the network between two worker processes again"),
    "step_seconds": (float, "time of a training step of one device (default: measured here)"),
    **{
        one.name: (float if one.default is None else one.default, one.metadata["help"])
        for one in fields(ScalingOptions)
    },
    "write": (str, "write a picture to this PNG file"),
    "quiet": (False, "show no progress"),
    "json": (False, "print JSON"),
}
_HEADINGS = ("replicas", "machines", "global batch", "step", "compute", "communication", "examples/s", "efficiency")


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values = command_flags(_FLAGS)
    return run_workload_command(_main, argv, values, description=(__doc__ or "").strip())


def _main(values: flags.FlagValues, parameters: WorkloadParameters) -> int:
    replicas = checked_replicas(_whole(text) for text in values.replicas)
    options = ScalingOptions(**{one.name: values[one.name].value for one in fields(ScalingOptions)})
    link, reference, fixed = _interconnect(values), reference_of_workload(values), fixed_fields(values)
    check_picture("write", values.write)
    from tfaccel.extras.estimates.estimate_scaling import estimate_scaling

    progress = _silent if values.quiet else partial(show_progress, "estimate-scaling")
    with contextlib.redirect_stdout(sys.stderr) if values.json else contextlib.nullcontext():
        try:
            if values.measure:
                link = _measured(progress)
            estimate = estimate_scaling(
                reference,
                replicas=replicas,
                interconnect=link,
                step_seconds=values.step_seconds,
                assume=options,
                progress=progress,
                **workload_options(values, parameters),
                **fixed,
            )
        finally:
            progress("")
    if values.write is not None:
        from tfaccel.extras.estimates.scaling import save_scaling_picture

        save_scaling_picture(values.write, estimate)
    if values.json:
        print(json.dumps(estimate.to_json(), indent=2))
    else:
        _print(estimate, values.write)
    return 0


def _measured(progress: Callable[[str], None]) -> Interconnect:
    from tfaccel.extras.estimates.loopback import loopback_interconnect
    from tfaccel.hardware.detect import detect_hardware

    return loopback_interconnect(detect_hardware(), use_cache=False, progress=progress)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise PlanError(f"--replicas must be whole numbers, such as 1,2,4. Received: {text!r}.") from None


def _interconnect(values: flags.FlagValues) -> Interconnect | None:
    """The interconnect that the flags give; None if it is to be measured."""
    given = [f"--{name}" for name in ("hardware", "interconnect", "measure") if values[name].value]
    if len(given) > 1:
        raise HardwareError(f"Give one of --hardware, --interconnect and --measure. Received: {', '.join(given)}.")
    if values.hardware is not None:
        return Interconnect.load(values.hardware)
    return None if values.interconnect is None else known_interconnect(values.interconnect)


def _silent(text: str) -> None:
    """Shows no progress."""


def _print(estimate: ScalingEstimate, picture: str | None) -> None:
    title = f"Predicted scaling of {estimate.workload} over {estimate.interconnect.name}"
    table = Table(title=title, title_justify="left")
    for heading in (*_HEADINGS, *(("epoch",) if _has(estimate, "epoch_seconds") else ()), *_cost_headings(estimate)):
        table.add_column(heading, justify="right")
    for row in estimate.rows:
        table.add_row(*_cells(row))
    console = table_console()
    console.print(table)
    for line in estimate.assumptions:
        console.print(Text(line))
    if picture is not None:
        console.print(Text(f"The picture is written to {picture}"))


def _has(estimate: ScalingEstimate, name: str) -> bool:
    return getattr(estimate.rows[0], name) is not None


def _cost_headings(estimate: ScalingEstimate) -> list[str]:
    names = {"cost_per_epoch": "cost of an epoch", "cost_per_million_examples": "cost of 1e6 examples"}
    return [heading for name, heading in names.items() if _has(estimate, name)]


def _cells(row: ScalingRow) -> list[str]:
    cells = [
        str(row.num_replicas),
        str(row.num_machines),
        str(row.global_batch_size),
        _time(row.step_seconds),
        _time(row.compute_seconds),
        _time(row.communication_seconds),
        f"{row.examples_per_second:,.0f}",
        f"{row.efficiency:.1%}",
    ]
    cells += [] if row.epoch_seconds is None else [_time(row.epoch_seconds)]
    costs = (row.cost_per_epoch, row.cost_per_million_examples)
    return cells + [f"{cost:.4g}" for cost in costs if cost is not None]


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms" if seconds < 1 else f"{seconds:,.4g} s"


if __name__ == "__main__":
    sys.exit(run(["estimate-scaling", *sys.argv[1:]]))
