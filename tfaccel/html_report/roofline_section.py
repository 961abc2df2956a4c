"""The section of rooflines: how close a step comes to the machine's limits, as `tfaccel roofline` measured it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfaccel.errors import ReportError
from tfaccel.html_report.blocks import Block, Card, Cards, Chart, LegendEntry, Message, Section, Table
from tfaccel.html_report.figures import BAD, COLORS, GOOD, MUTED, Series, line_figure, with_logarithmic_axes
from tfaccel.html_report.run_record import RunRecord
from tfaccel.html_report.texts import NONE, get_number, plain_number, seconds_text, value_text
from tfaccel.local_path import local_path
from tfaccel.planning.kept_rooflines import kept_roofline

_GIGA = 1e9
_DAMAGES = (ArithmeticError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)
_HOW_TO_SHOW = (
    "None is kept for the workload and plan of {} on that machine. `tfaccel roofline`, with the flags that the run was "
    "trained with, measures and keeps one; --roofline=FILE shows one that `tfaccel roofline --report=FILE` wrote."
)
_BOUNDS = {"arithmetic": COLORS[0], "memory": GOOD}


@dataclass(frozen=True, kw_only=True)
class LayerPoint:
    """A layer in the roofline.

    Args:
        name: the layer.
        flops: floating-point operations of its matrix products and convolutions in a step.
        num_bytes: the bytes that it must at least read and write.
        bound: "arithmetic" or "memory".
        least_seconds: its least time at the machine's limits.
        share: the fraction of the least time of all layers.
        seconds: the measured time; None if unknown.
    """

    name: str
    flops: float
    num_bytes: float
    bound: str
    least_seconds: float
    share: float
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class RooflineRecord:
    """What `tfaccel roofline` measured.

    Args:
        workload: the workload's name.
        text: the verdict.
        flops_per_second: dtype -> the machine's limit.
        bytes_per_second: the limit of its memory.
        step_seconds: the time of a step.
        mfu: model FLOPs utilization.
        layers: the layers, in order.
    """

    workload: str
    text: str
    flops_per_second: Mapping[str, float]
    bytes_per_second: float
    step_seconds: float
    mfu: float
    layers: tuple[LayerPoint, ...]

    @property
    def step_flops(self) -> float:
        """Floating-point operations of a step's matrix products and convolutions."""
        return sum(layer.flops for layer in self.layers)

    @property
    def step_bytes(self) -> float:
        """The bytes that a step must at least read and write."""
        return sum(layer.num_bytes for layer in self.layers)

    @property
    def step_flops_per_second(self) -> float:
        """The speed of the step as measured."""
        return self.step_flops / self.step_seconds


def read_roofline(path: str | os.PathLike[str]) -> RooflineRecord:
    """Reads a file that `tfaccel roofline --report=FILE` wrote.

    Raises:
        ReportError: if it cannot be read, or holds something else.
    """
    try:
        return _record(json.loads(local_path(path, ReportError).read_text(encoding="utf-8")))
    except OSError as error:
        raise ReportError(f"Cannot read the roofline {str(path)!r}: {error.strerror or error}.") from error
    except _DAMAGES as error:
        raise ReportError(
            f"{str(path)!r} is not a report of `tfaccel roofline --report=FILE`: {type(error).__name__} {error!s:.200}."
        ) from error


def kept_record(run: RunRecord) -> RooflineRecord | None:
    """The kept roofline of a run's workload, plan and machine; None if there is none, or if it is damaged.

    Args:
        run: a finished run.
    """
    if run.plan is None or run.result is None or not run.result.workload_key:
        return None
    data = kept_roofline(str(run.result.workload_key), run.plan)
    try:
        return None if data is None else _record(data)
    except _DAMAGES:
        return None


def _record(data: Mapping[str, Any]) -> RooflineRecord:
    devices = data["plan"]["devices"]
    count = len(devices) if str(devices[0]).startswith("GPU") else 1  # logical CPUs share one CPU's limits
    ceilings = data["ceilings"]
    layers = tuple(
        LayerPoint(
            name=str(layer["name"]),
            flops=_positive(layer["cost"]["matrix_flops"], zero=True),
            num_bytes=_positive(layer["cost"]["least_bytes"], zero=True),
            bound=str(layer["bound"]),
            least_seconds=_positive(layer["least_seconds"], zero=True),
            share=_positive(layer["share"], zero=True),
            seconds=None if layer.get("seconds") is None else _positive(layer["seconds"]),
        )
        for layer in data["layers"]
    )
    return RooflineRecord(
        workload=str(data["workload"]),
        text=str(data["text"]),
        flops_per_second={
            str(name): count * _positive(value) for name, value in ceilings["matrix_flops_per_second"].items()
        },
        bytes_per_second=count * _positive(ceilings["bytes_per_second"]),
        step_seconds=_positive(data["step_seconds"]),
        mfu=_positive(data["mfu"], zero=True),
        layers=layers,
    )


def _positive(value: Any, *, zero: bool = False) -> float:
    number = get_number(value)
    if number is None or number < 0 or (number == 0 and not zero):
        raise ValueError(f"a figure must be a positive number, not {value!r:.50}")
    return number


def roofline_section(runs: Sequence[RunRecord], given: RooflineRecord | None) -> Section:
    """The machine's limits, the layers below them, and the step as measured; without a record, how to get one.

    Args:
        runs: the runs of the report.
        given: the roofline to show; None for those that are kept of the runs.
    """
    records: list[tuple[str, RooflineRecord]] = [] if given is None else [("", given)]
    if given is None:
        for run in runs:
            found = kept_record(run)
            if found is not None and all(found != other for _, other in records):
                records.append((run.name if len(runs) > 1 else "", found))
    blocks: list[Block] = [block for name, record in records for block in _blocks(name, record)]
    if not records and runs:
        which = "the run" if len(runs) == 1 else "any of the runs"
        blocks.append(Message(lines=(_HOW_TO_SHOW.format(which),), tone="quiet"))
    return Section(anchor="roofline", title="Roofline", blocks=blocks)


def _blocks(run_name: str, found: RooflineRecord) -> list[Block]:
    of_run = f", run {run_name}" if run_name else ""
    cards = (
        Card(label="MFU", value=value_text("mfu", found.mfu), note=f"of the machine's speed{of_run}"),
        Card(label="step", value=seconds_text(found.step_seconds), note=f"{found.workload}{of_run}"),
    )
    blocks: list[Block] = [Cards(cards=cards), Message(lines=(found.text,))]
    points = [layer for layer in found.layers if layer.flops > 0 and layer.num_bytes > 0 and layer.least_seconds > 0]
    if points:
        chart = _chart(found, points)
        blocks.append(replace(chart, title=f"{chart.title}{of_run}"))
    return [*blocks, _limits_table(found), _table(found)]


def _chart(found: RooflineRecord, points: Sequence[LayerPoint]) -> Chart:
    fastest = max(found.flops_per_second.values())
    ridge = fastest / found.bytes_per_second
    intensities = [point.flops / point.num_bytes for point in points]
    low, high = min(0.1, min(intensities) / 2), max(2 * ridge, 2 * max(intensities))
    series, legend = [], []
    for name, speed in found.flops_per_second.items():
        x = [low, speed / found.bytes_per_second, high]
        y = [min(speed, one * found.bytes_per_second) / _GIGA for one in x]
        series.append(Series(name=f"limit, {name}: {speed / _GIGA:,.0f} GFLOP/s", x=x, y=y, color=MUTED, shape="plain"))
    legend.append(LegendEntry(label="limits of the machine", color=MUTED))
    for bound, color in _BOUNDS.items():
        some = [point for point in points if point.bound == bound]
        if some:
            series.append(
                Series(
                    name=f"bound by {bound}",
                    x=[point.flops / point.num_bytes for point in some],
                    y=[point.flops / (point.seconds or point.least_seconds) / _GIGA for point in some],
                    color=color,
                    shape="dot",
                    texts=[f"{point.name}, {100 * point.share:.0f} % of the least time" for point in some],
                )
            )
            legend.append(LegendEntry(label=f"layers bound by {bound}", color=color, shape="dot"))
    speed, intensity = found.step_flops_per_second / _GIGA, found.step_flops / found.step_bytes
    series.append(Series(name="the step as measured", x=[intensity], y=[speed], color=BAD, shape="dot"))
    legend.append(LegendEntry(label="the step as measured", color=BAD, shape="dot"))
    limits = "; ".join(f"{name} {one / _GIGA:,.0f} GFLOP/s" for name, one in found.flops_per_second.items())
    memory = f"memory {found.bytes_per_second / _GIGA:,.1f} GB/s"
    return Chart(
        title="Speed over arithmetic intensity",
        description=f"Limits: {limits}; {memory}. The step runs at {speed:,.1f} GFLOP/s.",
        figure=with_logarithmic_axes(line_figure(series, x_title="FLOP per byte", y_title="GFLOP/s")),
        legend=tuple(legend),
        note="A layer's dot lies at its measured speed; if that is unknown, on the limit that its arithmetic intensity "
        "allows.",
    )


def _limits_table(found: RooflineRecord) -> Table:
    limits = [(f"{name} matrix products", speed, "GFLOP/s") for name, speed in found.flops_per_second.items()]
    rows = [*limits, ("memory", found.bytes_per_second, "GB/s"), ("the step", found.step_flops_per_second, "GFLOP/s")]
    return Table(
        caption="Limits of the machine, and the step as measured",
        headings=("limit", "speed"),
        rows=tuple((name, f"{plain_number(speed / _GIGA)} {unit}") for name, speed, unit in rows),
        numeric=frozenset({1}),
    )


def _table(found: RooflineRecord) -> Table:
    rows = tuple(
        (
            layer.name,
            f"{layer.flops / _GIGA:.4g}",
            f"{layer.num_bytes / 1e6:.4g}",
            f"{layer.flops / layer.num_bytes:.3g}" if layer.num_bytes else NONE,
            layer.bound,
            seconds_text(layer.least_seconds),
            NONE if layer.seconds is None else seconds_text(layer.seconds),
            NONE if layer.seconds is None else f"{100 * layer.least_seconds / layer.seconds:.0f} %",
        )
        for layer in found.layers
    )
    return Table(
        caption=f"A step of {found.workload}, by layer",
        headings=("layer", "GFLOP", "MB", "FLOP/byte", "bound by", "least time", "time", "of the limit"),
        rows=rows,
        numeric=frozenset({1, 2, 3, 5, 6, 7}),
    )
