"""The sections of the plan: its fields with their reasons, and the candidates that were measured for it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import fields, replace

from tfaccel.errors import ReportError, TfaccelError
from tfaccel.html_report.blocks import Block, Chart, LegendEntry, Message, Section, Table
from tfaccel.html_report.figures import COLORS, GOOD, Bar, bar_figure
from tfaccel.html_report.run_record import RunRecord
from tfaccel.html_report.texts import get_number, get_words, setting_text
from tfaccel.local_path import local_path
from tfaccel.measuring.report import HEADINGS, Report, described
from tfaccel.planning.moves import MEASURED
from tfaccel.planning.placements import SET_BY_YOU
from tfaccel.planning.plan import FieldExplanation, Plan, explain
from tfaccel.planning.plan_cache import plans_dir
from tfaccel.planning.rules import AUGMENT_ON_UNMEASURED

# Shown for every plan; other fields only where they differ from the default, were measured, or were set by the user.
_MAIN = ("strategy", "devices", "dtype_policy", "jit_compile", "global_batch_size", "steps_per_execution")
_DEFAULTS = {one.name: one.default for one in fields(Plan)}
_VOLATILE = ("memory_bytes", "cluster")  # of a machine: they may change from run to run
_DAMAGES = (OSError, ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError, TfaccelError)


def plan_section(runs: Sequence[RunRecord]) -> Section:
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
    return Section(anchor="plan", title="Plan", blocks=blocks)


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
    """Reads a file that `tfaccel autotune --report=FILE` wrote.

    Raises:
        ReportError: if it cannot be read, or holds something else.
    """
    try:
        return _checked(Report.from_json(json.loads(local_path(path, ReportError).read_text(encoding="utf-8"))))
    except OSError as error:
        raise ReportError(f"Cannot read the autotune report {str(path)!r}: {error.strerror or error}.") from error
    except _DAMAGES as error:
        raise ReportError(
            f"{str(path)!r} is not a report of `tfaccel autotune --report=FILE`: {type(error).__name__} {error!s:.200}."
        ) from error


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
    """The kept report of `tfaccel autotune` that chose the plan of a run; None if there is none.

    It is the one of the same workload and the same kind of machine whose plan the run used. A plan's reasons contain
    the measured gains, which tell apart the plans of models with the same name.

    Args:
        run: a finished run.
    """
    directory = plans_dir()
    if run.plan is None or run.result is None or directory is None:
        return None
    machine = {name: value for name, value in run.result.hardware.items() if name not in _VOLATILE}
    try:
        files = sorted(directory.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    except OSError:
        return None
    for file in files:
        try:
            report = _checked(Report.from_json(json.loads(file.read_text(encoding="utf-8"))["report"]))
            there = {name: value for name, value in report.hardware.items() if name not in _VOLATILE}
            if report.workload == run.workload and there == machine and _is_chosen(run.plan, report.plan):
                return report
        except _DAMAGES:
            continue
    return None


def _is_chosen(plan: Plan, chosen: Plan) -> bool:
    """Whether a run's plan is a chosen one with its reasons; where it left `augment_on` open, the run has decided."""
    reasons = dict(chosen.reasons)
    if reasons.get("augment_on") == AUGMENT_ON_UNMEASURED:
        reasons["augment_on"] = dict(plan.reasons).get("augment_on", "")
        chosen = replace(chosen, augment_on=plan.augment_on)
    return chosen == plan and reasons == dict(plan.reasons)


def candidate_section(runs: Sequence[RunRecord], given: Report | None) -> Section:
    """The candidates that `tfaccel autotune` measured: those given, or those kept of the runs' plans."""
    reports: list[tuple[str, Report]] = [] if given is None else [("", given)]
    if given is None:
        for run in runs:
            report = kept_report(run)
            if report is not None and all(report != other for _, other in reports):
                reports.append((run.name if len(runs) > 1 else "", report))
    blocks: list[Block] = [block for name, report in reports for block in _candidates(name, report)]
    if not reports and any(run.plan is not None for run in runs):
        blocks.append(Message(lines=(_why_none(runs),), tone="quiet"))
    return Section(anchor="candidates", title="Measured candidates", blocks=blocks)


def _why_none(runs: Sequence[RunRecord]) -> str:
    plans = [run.plan for run in runs if run.plan is not None]
    if any(reason.startswith(MEASURED) for plan in plans for _, reason in plan.reasons):
        return "The measurements that chose the plan are not kept here: give them by --autotune_report=FILE."
    workloads = ", ".join(dict.fromkeys(run.workload for run in runs if run.workload)) or "this workload"
    return f"No measured candidates are kept for {workloads}. `tfaccel autotune` measures."


def _candidates(run_name: str, report: Report) -> list[Block]:
    first = report.candidates[0].plan
    bars, legend = [], {}
    for number, candidate in enumerate(report.candidates):
        rate = candidate.examples_per_second
        if rate is None:
            continue
        state, color = _state(number == report.chosen)
        legend[state] = LegendEntry(label=state, color=color, shape="dot")
        rates = [window.num_steps * candidate.plan.global_batch_size / window.seconds for window in candidate.windows]
        label = described(candidate, first)
        more = candidate.rejection or f"{len(rates)} windows, from {min(rates):,.0f} to {max(rates):,.0f}"
        bars.append(Bar(label=label, value=rate, low=min(rates), high=max(rates), color=color, text=more))
    blocks: list[Block] = []
    chosen = described(report.candidates[report.chosen], first)
    lead = f"{len(report.candidates)} plans for {report.workload} were measured in {report.seconds:.0f} s."
    gains = [f"{get_words(axis)} {gain:.2f} times as fast" for axis, gain in report.gains.items()]
    lines = [
        f"{lead} Chosen: {chosen}, {report.speedup:.2f} times the speed of the first plan.",
        report.stopped_because,
    ]
    lines += [f"Gain by axis: {'; '.join(gains)}."] if gains else []
    blocks.append(Message(lines=tuple(line for line in lines if line), badge=run_name))
    if bars:
        said = "; ".join(f"{bar.label}: {bar.value:,.0f}" for bar in bars)
        blocks.append(
            Chart(
                title="Throughput of the candidates",
                description=f"Examples per second. {said}.",
                figure=bar_figure(bars, x_title="examples/s"),
                legend=tuple(legend.values()),
                note="Bars: median of the windows; lines: the slowest and the fastest window.",
            )
        )
    rows = tuple(tuple(row) for row in report.rows())
    blocks.append(
        Table(
            caption="All candidates",
            headings=HEADINGS,
            rows=rows,
            numeric=frozenset(range(1, len(HEADINGS) - 1)),
            strong=frozenset({(report.chosen, 0)}),
        )
    )
    return blocks


def _state(is_chosen: bool) -> tuple[str, str]:
    return ("chosen", GOOD) if is_chosen else ("not chosen", COLORS[0])
