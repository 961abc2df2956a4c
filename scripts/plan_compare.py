"""`tfaccel plan --compare=cpu,gpu`: how long training takes on each, and from which data size on the GPU pays."""

import contextlib
import json
import sys
from functools import partial
from typing import Any

from absl import flags
from rich.table import Table
from rich.text import Text

from tfaccel.errors import PlanError
from tfaccel.extras.estimates.device_comparison import DeviceComparison, DeviceTime, GpuAssumptions
from tfaccel.hardware.hardware import Hardware
from tfaccel.scripts.command import show_progress, table_console
from tfaccel.scripts.command_flags import Flag
from tfaccel.scripts.workload_flags import reference_of_workload

_KINDS = ("cpu", "gpu")
_ASSUMED = GpuAssumptions()

COMPARE_FLAGS: dict[str, Flag] = {
    "compare": (str, "cpu,gpu: compare training on both, instead of printing plans"),
    "epochs": (int, "compare: passes over the data (default: the workload's)"),
    "num_examples": (int, "compare: examples in an epoch (default: the workload's)"),
    "cpu_step_seconds": (float, "compare: time of a training step on the CPU (default: measured here)"),
    "gpu_step_seconds": (float, "compare: the same on the GPU (default: measured if it is here, otherwise estimated)"),
    "gpu_reached_fraction": (float, f"compare: of the GPU's peak arithmetic (default: {_ASSUMED.reached_fraction:g})"),
    "gpu_reached_bandwidth_fraction": (
        float,
        f"compare: of the bandwidths of its memory and PCIe (default: {_ASSUMED.reached_bandwidth_fraction:g})",
    ),
    "gpu_kernel_seconds": (float, f"compare: to launch one operation (default: {_ASSUMED.kernel_seconds:g})"),
    "gpu_start_seconds": (float, f"compare: to initialize CUDA (default: {_ASSUMED.start_seconds:g})"),
    "quiet": (False, "compare: show no progress"),
}
_ASSUMPTION_FLAGS = tuple(name for name in COMPARE_FLAGS if name.removeprefix("gpu_") in vars(_ASSUMED))


def refuse_compare_flags(values: flags.FlagValues) -> None:
    """Raises PlanError for flags that need --compare."""
    for name in COMPARE_FLAGS:
        value = values[name].value
        if values[name].present and value is not None and value is not False:
            raise PlanError(f"--{name} needs --compare=cpu,gpu.")


def compare(values: flags.FlagValues, options: dict[str, Any]) -> int:
    """Runs the command with --compare; returns its exit status.

    Args:
        values: the command's flags.
        options: plan fields and arguments of the workload that are set by flags.
    """
    _check_kinds(values.compare)
    if values.write is not None:
        raise PlanError("--write is for a plan. Received: --write and --compare. Leave one of them out.")
    reference = reference_of_workload(values)
    assumed = {name: values[name].value for name in _ASSUMPTION_FLAGS if values[name].value is not None}
    assume = GpuAssumptions(**{name.removeprefix("gpu_"): value for name, value in assumed.items()})
    hardware = None if values.hardware is None else Hardware.load(values.hardware)
    from tfaccel.extras.estimates.compare_devices import ComparisonOptions, compare_devices

    names = ("cpu_step_seconds", "gpu_step_seconds", "epochs", "num_examples")
    given = ComparisonOptions(**{name: values[name].value for name in names})
    progress = _silent if values.quiet else partial(show_progress, "plan")
    with contextlib.redirect_stdout(sys.stderr) if values.json else contextlib.nullcontext():
        try:
            found = compare_devices(
                reference, hardware=hardware, assume=assume, given=given, progress=progress, **options
            )
        finally:
            progress("")
    if values.json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        _print(found)
    return 0


def _check_kinds(text: str) -> None:
    kinds = [kind.strip().lower() for kind in text.split(",")]
    unknown = [kind for kind in kinds if kind not in _KINDS]
    if unknown or sorted(kinds) != sorted(_KINDS):
        problem = f"There is no kind {unknown[0]!r} to compare" if unknown else "Two kinds are compared, each once"
        raise PlanError(f"{problem}. Give --compare=cpu,gpu. Received: --compare={text}.")


def _silent(text: str) -> None:
    """Shows no progress."""


def _print(found: DeviceComparison) -> None:
    size = "unknown" if found.num_examples is None else f"{found.num_examples:,}"
    title = f"{found.workload}: {size} examples, {found.epochs} epoch(s)"
    table = Table(title=title, title_justify="left")
    for heading in ("", "device", "how known", "step", "examples/s", "epoch", "start", "all"):
        table.add_column(heading, overflow="fold")
    for one in (found.cpu, found.gpu):
        table.add_row(*(Text(cell) for cell in _cells(one, found)))
    console = table_console()
    console.print(table)
    for one in (found.cpu, found.gpu):
        for name, seconds in (one.parts or {}).items():
            console.print(Text(f"{one.kind}, {name}: {_time(seconds)} of a step"))
        for note in one.notes:
            console.print(Text(f"{one.kind}: {note}"))
    console.print(Text(verdict(found), style="bold"))


def _cells(one: DeviceTime, found: DeviceComparison) -> list[str]:
    epoch = total = "unknown"
    if found.num_examples is not None:
        epoch = _time(found.num_examples * one.example_seconds)
        total = _time(one.total_seconds(found.num_examples, found.epochs))
    rate = f"{1 / one.example_seconds:,.0f}"
    return [one.kind, one.device, one.source, _time(one.step_seconds), rate, epoch, _time(one.start_seconds), total]


def verdict(found: DeviceComparison) -> str:
    """One sentence: whether the GPU pays."""
    least, most = found.break_even_examples, found.max_gpu_examples
    if least is not None:
        text = f"The GPU takes less time from {least:,} examples per epoch on, with {found.epochs} epoch(s)."
    elif most is not None:
        text = (
            f"The GPU takes less time up to {most:,} examples per epoch, with {found.epochs} epoch(s): it starts "
            "sooner, but takes longer per example."
        )
    else:
        return "The GPU never takes less time: a step on it takes as long as on the CPU, or longer."
    if found.num_examples is None:
        return text
    return f"{text} With {found.num_examples:,} it {'pays' if found.gpu_pays else 'does not pay'}."


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms" if seconds < 1 else f"{seconds:,.4g} s"
