"""The sections of the plan: its fields with reasons, the measured candidates, and the limits of the machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from tfaccel.errors import ReportError
from tfaccel.html_report.figures import (
    BAD,
    COLORS,
    GOOD,
    MUTED,
    Bar,
    Series,
    bar_chart,
    line_figure,
    with_logarithmic_axes,
)
from tfaccel.html_report.page import (
    NONE,
    Block,
    Card,
    Cards,
    Chart,
    LegendEntry,
    Message,
    Table,
    get_number,
    get_words,
    plain_number,
    seconds_text,
    setting_text,
    value_text,
)
from tfaccel.html_report.records import RunRecord
from tfaccel.measuring.report import HEADINGS, Report, described
from tfaccel.measuring.roofline import LAYER_HEADINGS, LayerLimit, Roofline
from tfaccel.planning.cache import DAMAGES, kept_roofline
from tfaccel.planning.moves import MEASURED
from tfaccel.planning.placements import SET_BY_YOU
from tfaccel.planning.plan import FieldExplanation, Plan, explain
from tfaccel.planning.plan_cache import kept_files
from tfaccel.planning.rules import AUGMENT_ON_UNMEASURED
from tfaccel.remote import readable_path

Measured = TypeVar("Measured")

# Shown for every plan; other fields only where they differ from the default, were measured, or were set by the user.
_MAIN = ("strategy", "devices", "dtype_policy", "jit_compile", "global_batch_size", "steps_per_execution")
_DEFAULTS = {one.name: one.default for one in fields(Plan)}
_VOLATILE = ("memory_bytes", "cluster")  # of a machine: they may change from run to run
_GIGA = 1e9
_HOW_TO_SHOW = (
    "None is kept for the workload and plan of {} on that machine. `tfaccel roofline`, with the flags that the run was "
    "trained with, measures and keeps one; --roofline=FILE shows one that `tfaccel roofline --report=FILE` wrote."
)
_BOUNDS = {"arithmetic": COLORS[0], "memory": GOOD}


def plan_blocks(runs: Sequence[RunRecord]) -> list[Block]:
    """What each run was trained with, and why."""
    blocks: list[Block] = []
    first: RunRecord | None = None
    for run in runs:
        if run.plan is None:
            continue
        of = f" of {run.name}" if len(runs) > 1 else ""
        explained = explain(run.plan)
        if first is None or first.plan is None:
            first = run
            blocks.append(_plan_table(f"Main choices{of}", [one for one in explained if _is_main(one)]))
        else:
            others = explain(first.plan)
            changed = [one for one, other in zip(explained, others, strict=True) if one.value != other.value]
            if changed:
                blocks.append(_plan_table(f"Where {run.name} differs from {first.name}", changed))
            else:
                blocks.append(Message(lines=(f"{run.name} has the same plan as {first.name}.",), tone="quiet"))
        blocks.append(_plan_table(f"All fields{of}", explained, folded=True))
    return blocks


def _is_main(one: FieldExplanation) -> bool:
    decided = one.reason == SET_BY_YOU or one.reason.startswith(MEASURED)
    return one.field in _MAIN or decided or one.value != _DEFAULTS[one.field]


def _plan_table(caption: str, explained: Sequence[FieldExplanation], *, folded: bool = False) -> Table:
    return Table(
        caption=caption,
        headings=("field", "value", "reason"),
        rows=tuple((one.field, setting_text(one.value), one.reason) for one in explained),
        folded=folded,
        stacked=True,
    )


def read_autotune_report(path: str | os.PathLike[str]) -> Report:
    """Reads a file that `tfaccel find-fastest --report=FILE` wrote.

    Raises:
        ReportError: if it cannot be read, or holds something else.
    """
    return read_measurement(
        path, lambda data: _checked(Report.from_json(data)), command="find-fastest", name="autotune report"
    )


def _checked(report: Report) -> Report:
    """The report; raises an error for values of other types than it states, which a damaged file may hold."""
    report.rows()
    if not 0 <= report.chosen < len(report.candidates):
        raise ValueError(f"candidate {report.chosen} of {len(report.candidates)} was chosen")
    numbers = (report.speedup, report.seconds, *report.gains.values())
    texts = (report.workload, report.stopped_because, *(one.rejection or one.failure for one in report.candidates))
    if any(get_number(one) is None for one in numbers) or not all(isinstance(one, str) for one in texts):
        raise ValueError("a value has another type than was written")
    for candidate in report.candidates:
        rates = [one.num_steps / one.seconds for one in candidate.windows]
        if any(not rate > 0 for rate in rates):
            raise ValueError("a rate is not positive")
    return report


def kept_report(run: RunRecord) -> Report | None:
    """The kept report of `tfaccel find-fastest` that chose the plan of a run; None if there is none.

    It is the one of the same workload and the same kind of machine whose plan the run used. A plan's reasons contain
    the measured gains, which tell apart the plans of models with the same name.
    """
    if run.plan is None or run.result is None:
        return None
    machine = {name: value for name, value in run.result.hardware.items() if name not in _VOLATILE}
    for file in kept_files():
        try:
            report = _checked(Report.from_json(json.loads(file.read_text(encoding="utf-8"))["report"]))
            there = {name: value for name, value in report.hardware.items() if name not in _VOLATILE}
            if report.workload == run.workload and there == machine and _is_chosen(run.plan, report.plan):
                return report
        except DAMAGES:
            continue
    return None


def _is_chosen(plan: Plan, chosen: Plan) -> bool:
    """Whether a run's plan is a chosen one with its reasons; where it left `augment_on` open, the run has decided."""
    reasons = dict(chosen.reasons)
    if reasons.get("augment_on") == AUGMENT_ON_UNMEASURED:
        reasons["augment_on"] = dict(plan.reasons).get("augment_on", "")
        chosen = replace(chosen, augment_on=plan.augment_on)
    return chosen == plan and reasons == dict(plan.reasons)


def candidate_blocks(runs: Sequence[RunRecord], given: Report | None) -> list[Block]:
    """The candidates that `tfaccel find-fastest` measured: those given, or those kept of the runs' plans."""
    reports = measurements(runs, given, kept_report)
    blocks: list[Block] = [block for name, report in reports for block in _candidates(name, report)]
    if not reports and any(run.plan is not None for run in runs):
        blocks.append(Message(lines=(_why_none(runs),), tone="quiet"))
    return blocks


def measurements(
    runs: Sequence[RunRecord], given: Measured | None, kept: Callable[[RunRecord], Measured | None]
) -> list[tuple[str, Measured]]:
    """The measurements to show, each after the name of its run, which is "" where that is clear.

    Args:
        runs: the runs of the report.
        given: the measurement that the user gave; None for those that are kept of the runs.
        kept: returns the kept measurement of a run; None if there is none.
    """
    if given is not None:
        return [("", given)]
    found: list[tuple[str, Measured]] = []
    for run in runs:
        one = kept(run)
        if one is not None and all(one != other for _, other in found):
            found.append((run.name if len(runs) > 1 else "", one))
    return found


def read_measurement(
    path: str | os.PathLike[str], read: Callable[[Any], Measured], *, command: str, name: str
) -> Measured:
    """Reads a file that a command wrote with --report=FILE.

    Args:
        path: the file.
        read: makes the measurement of the JSON data in it.
        command: the command.
        name: what the file is called.
    """
    file = readable_path(path, ReportError)
    try:
        return read(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ReportError(f"Cannot read the {name} {str(path)!r}: {error.strerror or error}.") from error
    except DAMAGES as error:
        wanted = f"a report of `tfaccel {command} --report=FILE`"
        raise ReportError(f"{str(path)!r} is not {wanted}: {type(error).__name__} {error!s:.200}.") from error


def _why_none(runs: Sequence[RunRecord]) -> str:
    plans = [run.plan for run in runs if run.plan is not None]
    if any(reason.startswith(MEASURED) for plan in plans for _, reason in plan.reasons):
        return "The measurements that chose the plan are not kept here: give them by --autotune_report=FILE."
    workloads = ", ".join(dict.fromkeys(run.workload for run in runs if run.workload)) or "this workload"
    return f"No measured candidates are kept for {workloads}. `tfaccel find-fastest` measures."


def _candidates(run_name: str, report: Report) -> list[Block]:
    first = report.candidates[0].plan
    bars = []
    for number, candidate in enumerate(report.candidates):
        rate = candidate.examples_per_second
        if rate is None:
            continue
        color, meaning = (GOOD, "chosen") if number == report.chosen else (COLORS[0], "not chosen")
        rates = [window.num_steps * candidate.plan.global_batch_size / window.seconds for window in candidate.windows]
        low, high = min(rates), max(rates)
        text = candidate.rejection or f"{len(rates)} windows, from {low:,.0f} to {high:,.0f}"
        label = described(candidate, first)
        bars.append(Bar(label=label, value=rate, low=low, high=high, color=color, meaning=meaning, text=text))
    chosen = described(report.candidates[report.chosen], first)
    gains = [f"{get_words(axis)} {gain:.2f} times as fast" for axis, gain in report.gains.items()]
    lines = (
        f"{len(report.candidates)} plans for {report.workload} were measured in {report.seconds:.0f} s. "
        f"Chosen: {chosen}, {report.speedup:.2f} times the speed of the first plan.",
        report.stopped_because,
        f"Gain by axis: {'; '.join(gains)}." if gains else "",
    )
    blocks: list[Block] = [Message(lines=tuple(filter(None, lines)), badge=run_name)]
    if bars:
        said = "; ".join(f"{bar.label}: {bar.value:,.0f}" for bar in bars)
        blocks.append(
            bar_chart(
                bars,
                x_title="examples/s",
                title="Throughput of the candidates",
                description=f"Examples per second. {said}.",
                note="Bars: median of the windows; lines: the slowest and the fastest window.",
            )
        )
    blocks.append(
        Table(
            caption="All candidates",
            headings=HEADINGS,
            rows=tuple(map(tuple, report.rows())),
            numeric=frozenset(range(1, len(HEADINGS) - 1)),
            strong=frozenset({(report.chosen, 0)}),
        )
    )
    return blocks


def read_roofline(path: str | os.PathLike[str]) -> Roofline:
    """Reads a file that `tfaccel roofline --report=FILE` wrote.

    Raises:
        ReportError: if it cannot be read, or holds something else.
    """
    return read_measurement(path, _roofline, command="roofline", name="roofline")


def _kept_roofline(run: RunRecord) -> Roofline | None:
    """The kept roofline of a run's workload, plan and machine; None if there is none, or if it is damaged."""
    if run.plan is None or run.result is None or not run.result.workload_key:
        return None
    data = kept_roofline(str(run.result.workload_key), run.plan)
    try:
        return None if data is None else _roofline(data)
    except DAMAGES:
        return None


def _roofline(data: Mapping[str, Any]) -> Roofline:
    """The roofline; raises an error for values of other types than it states, which a damaged file may hold."""
    found = Roofline.from_json(data)
    of_layers = [value for row in found.cost.rows for value in (row.matrix_flops, row.least_bytes)]
    for value in (found.step_seconds, *found.layer_seconds.values(), *of_layers):
        number = get_number(value)
        if number is None or number < 0:
            raise ValueError(f"a figure must be a positive number, not {value!r:.50}")
    if not isinstance(found.workload, str) or not found.text or not found.step_seconds:
        raise ValueError("a value has another type than was written")
    return found


def roofline_blocks(runs: Sequence[RunRecord], given: Roofline | None) -> list[Block]:
    """The machine's limits, the layers below them, and the step as measured; without a record, how to get one.

    Args:
        runs: the runs of the report.
        given: the roofline to show; None for those that are kept of the runs.
    """
    records = measurements(runs, given, _kept_roofline)
    blocks: list[Block] = [block for name, record in records for block in _roofline_blocks(name, record)]
    if not records and runs:
        which = "the run" if len(runs) == 1 else "any of the runs"
        blocks.append(Message(lines=(_HOW_TO_SHOW.format(which),), tone="quiet"))
    return blocks


def _roofline_blocks(run_name: str, found: Roofline) -> list[Block]:
    of_run = f", run {run_name}" if run_name else ""
    cards = (
        Card(label="MFU", value=value_text("mfu", found.mfu), note=f"of the machine's speed{of_run}"),
        Card(label="step", value=seconds_text(found.step_seconds), note=f"{found.workload}{of_run}"),
    )
    blocks: list[Block] = [Cards(cards=cards), Message(lines=(found.text,))]
    points = [one for one in found.layers() if one.cost.matrix_flops > 0 and one.cost.least_bytes > 0]
    if points:
        chart = _roofline_chart(found, points)
        blocks.append(replace(chart, title=f"{chart.title}{of_run}"))
    return [*blocks, _limits_table(found), _layer_table(found)]


def _roofline_chart(found: Roofline, points: Sequence[LayerLimit]) -> Chart:
    speeds, memory = found.matrix_flops_ceilings, found.bytes_ceiling
    intensities = [point.cost.intensity for point in points]
    low, high = min(0.1, min(intensities) / 2), max(2 * (max(speeds.values()) / memory), 2 * max(intensities))
    series, legend = [], [LegendEntry(label="limits of the machine", color=MUTED)]
    for name, speed in speeds.items():
        x = [low, speed / memory, high]
        y = [min(speed, one * memory) / _GIGA for one in x]
        series.append(Series(name=f"limit, {name}: {speed / _GIGA:,.0f} GFLOP/s", x=x, y=y, color=MUTED, shape="plain"))
    for bound, color in _BOUNDS.items():
        some = [point for point in points if point.bound == bound]
        if some:
            series.append(
                Series(
                    name=f"bound by {bound}",
                    x=[point.cost.intensity for point in some],
                    y=[point.flops_per_second / _GIGA for point in some],
                    color=color,
                    shape="dot",
                    texts=[f"{point.name}, {100 * point.share:.0f} % of the least time" for point in some],
                )
            )
            legend.append(LegendEntry(label=f"layers bound by {bound}", color=color, shape="dot"))
    cost = found.cost
    speed = cost.matrix_flops / found.step_seconds / _GIGA
    name = "the step as measured"
    series.append(Series(name=name, x=[cost.matrix_flops / cost.least_bytes], y=[speed], color=BAD, shape="dot"))
    legend.append(LegendEntry(label=name, color=BAD, shape="dot"))
    limits = "; ".join(f"{name} {one / _GIGA:,.0f} GFLOP/s" for name, one in speeds.items())
    return Chart(
        title="Speed over arithmetic intensity",
        description=f"Limits: {limits}; memory {memory / _GIGA:,.1f} GB/s. The step runs at {speed:,.1f} GFLOP/s.",
        figure=with_logarithmic_axes(line_figure(series, x_title="FLOP per byte", y_title="GFLOP/s")),
        legend=tuple(legend),
        note="A layer's dot lies at its measured speed; if that is unknown, on the limit that its arithmetic intensity "
        "allows.",
    )


def _limits_table(found: Roofline) -> Table:
    limits = [(f"{name} matrix products", speed, "GFLOP/s") for name, speed in found.matrix_flops_ceilings.items()]
    step = found.cost.matrix_flops / found.step_seconds
    rows = [*limits, ("memory", found.bytes_ceiling, "GB/s"), ("the step", step, "GFLOP/s")]
    return Table(
        caption="Limits of the machine, and the step as measured",
        headings=("limit", "speed"),
        rows=tuple((name, f"{plain_number(speed / _GIGA)} {unit}") for name, speed, unit in rows),
        numeric=frozenset({1}),
    )


def _layer_table(found: Roofline) -> Table:
    rows = tuple(
        (
            one.name,
            f"{one.cost.matrix_flops / _GIGA:.4g}",
            f"{one.cost.least_bytes / 1e6:.4g}",
            f"{one.cost.intensity:.3g}" if one.cost.least_bytes else NONE,
            one.bound,
            seconds_text(one.least_seconds),
            NONE if one.seconds is None else seconds_text(one.seconds),
            f"{100 * one.least_seconds / one.seconds:.0f} %" if one.seconds else NONE,
        )
        for one in found.layers()
    )
    return Table(
        caption=f"A step of {found.workload}, by layer",
        headings=LAYER_HEADINGS,
        rows=rows,
        numeric=frozenset({1, 2, 3, 5, 6, 7}),
    )
