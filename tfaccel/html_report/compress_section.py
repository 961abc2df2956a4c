"""The section of compressed variants: sizes and latencies, and the table of `tfaccel compress`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tfaccel.compressing.comparison.gate import CompressResult
from tfaccel.compressing.comparison.gate_table import HEADINGS, cells, get_notes, sensitivity_cells
from tfaccel.compressing.comparison.variant_result import VariantResult
from tfaccel.html_report.blocks import Block, Chart, LegendEntry, Message, Section, Table
from tfaccel.html_report.figures import BAD, COLORS, GOOD, MUTED, Bar, bar_figure
from tfaccel.html_report.found_records import CompressRecord

_STATES = {"the float model": MUTED, "selected": GOOD, "within the limit": COLORS[0], "outside the limit": BAD}


def compress_sections(comparisons: Sequence[CompressRecord]) -> list[Section]:
    """A section for each comparison."""
    several = len(comparisons) > 1
    return [
        Section(
            anchor=f"compressed-{number}" if several else "compressed",
            title=f"Compressed variants of {one.name}" if several else "Compressed variants",
            blocks=_blocks(one.result),
        )
        for number, one in enumerate(comparisons, 1)
    ]


def _blocks(result: CompressResult) -> list[Block]:
    blocks: list[Block] = [Message(lines=tuple(result.summary()))]
    measured = [one for one in result.results if not one.failure and one.size_bytes]
    if measured:
        sizes = [one.size_bytes / 1000 for one in measured]
        blocks.append(_chart(result, measured, sizes, title="File size", unit="kB"))
    timed = [one for one in measured if math.isfinite(one.best_seconds)]
    if timed:
        times = [one.best_seconds * 1e3 for one in timed]
        blocks.append(_chart(result, timed, times, title="Latency of one example", unit="ms"))
    better = "lower" if result.lower_is_better else "higher"
    headings = tuple(name.replace("METRIC", result.metric).replace("-\n", "").replace("\n", " ") for name in HEADINGS)
    blocks.append(
        Table(
            caption=f"{result.metric} ({better} is better) on {result.held_out}",
            headings=headings,
            rows=tuple(tuple(cells(result, one)) for one in result.results),
            numeric=frozenset(range(1, len(HEADINGS) - 1)),
            strong=frozenset((row, 0) for row, one in enumerate(result.results) if one is result.winner),
        )
    )
    notes = tuple(line for one in result.results for line in get_notes(result, one))
    if notes:
        blocks.append(Message(lines=notes, tone="quiet"))
    if result.sensitivity:
        blocks.append(
            Table(
                caption="Sensitivity of each layer alone in int8, highest first",
                headings=("layer", f"{result.metric} drop", "output change", "operations"),
                rows=tuple(tuple(sensitivity_cells(cost)) for cost in result.sensitivity),
                numeric=frozenset({1, 2}),
            )
        )
    return blocks


def _chart(
    result: CompressResult, measured: Sequence[VariantResult], figures: Sequence[float], *, title: str, unit: str
) -> Chart:
    """A bar for each variant, with its metric beside its name."""
    bars, legend = [], {}
    for one, figure in zip(measured, figures, strict=True):
        state = _state(result, one)
        legend[state] = LegendEntry(label=state, color=_STATES[state], shape="dot")
        label = f"{one.variant.name}: {result.metric} {result.value(one):.4f}"
        bars.append(Bar(label=label, value=figure, color=_STATES[state], text=result.verdict(one)))
    said = "; ".join(f"{bar.label}, {bar.value:.4g} {unit}" for bar in bars)
    return Chart(
        title=title,
        description=f"{said}.",
        figure=bar_figure(bars, x_title=unit),
        legend=tuple(legend.values()),
    )


def _state(result: CompressResult, one: VariantResult) -> str:
    if result.is_float(one):
        return "the float model"
    if one is result.winner:
        return "selected"
    return "within the limit" if result.is_within(one) else "outside the limit"
