"""The sections of outcomes: verdicts and final figures, runs and variants compared, and where they were trained."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfaccel.compressing.compress_result import HEADINGS, CompressResult, cells, get_notes, sensitivity_cells
from tfaccel.compressing.variant import VariantResult
from tfaccel.errors import SearchError
from tfaccel.html_report.figures import BAD, COLORS, GOOD, MUTED, Bar, bar_chart
from tfaccel.html_report.page import (
    NONE,
    Block,
    Card,
    Cards,
    Chart,
    Message,
    Table,
    bytes_text,
    get_number,
    get_words,
    plain_number,
    seconds_text,
    setting_text,
    value_text,
)
from tfaccel.html_report.records import Records, RunRecord
from tfaccel.planning.plan import plan_field_names
from tfaccel.training.verdict import SOUND, UNKNOWN
from tfaccel.tuning.objective import infer_direction

_PARTS = ("options", "built")  # of a run's config
_ABSENT = object()  # a setting that a run does not have
_MAX_DIFFERENCES, _MAX_SETTING = 40, 200  # rows, and characters
_ON_TRAINING = " (training)"
_MAX_METRICS = 4  # shown as cards; the table of final metrics has all


def summary_blocks(records: Records) -> list[Block]:
    """The verdict and the main figures of each run, and what could not be read."""
    blocks: list[Block] = []
    if len(records.runs) == 1:
        [run] = records.runs
        blocks += [Cards(cards=_cards(run)), _verdict(run)]
    else:  # the figures of several runs are in the table that compares them
        blocks += [replace(_verdict(run), badge=run.name) for run in records.runs]
    for search in records.searches:
        best, ended = search.result.best, "" if search.is_finished else " The search has not ended."
        by = search.result.algorithm or "an unknown algorithm"
        counts = Counter(trial.status for trial in search.result.rows)
        lost = "".join(f", {counts[status]} {status}" for status in ("failed", "pruned") if counts[status])
        text = f"{len(search.result.rows)} trials by {by}{lost}.{ended}"
        if best is not None:
            score = "" if len(search.result.objective.parts) > 1 else f" {value_text('', best.score)}"
            names = ", ".join(search.result.objective.names)
            text = f"{text} Best: trial {best.trial_id}, {names}{score}."
        blocks.append(Message(lines=(text,), badge=f"search {search.name}"))
    for name, comparison in records.comparisons:
        blocks.append(Message(lines=tuple(comparison.summary()), badge=f"compressed {name}"))
    if records.problems:
        blocks.append(Message(lines=records.problems, tone="warning", badge="left out"))
    return blocks


def _cards(run: RunRecord) -> tuple[Card, ...]:
    on = "final" if run.result is not None else "last epoch"
    metrics = sorted(run.final.items(), key=lambda item: item[0].endswith("loss"))  # others before losses
    cards = [Card(label=name, value=value_text(name, value), note=on) for name, value in metrics[:_MAX_METRICS]]
    if run.result is not None:
        rate = run.result.examples_per_second
        if rate > 0:
            median, p95 = (get_number(run.result.step_seconds.get(name)) for name in ("median", "p95"))
            step = "" if median is None else f"{seconds_text(median)} per step"
            step += "" if median is None or p95 is None else f", 95 % within {seconds_text(p95)}"
            cards.append(Card(label="examples per second", value=f"{rate:,.0f}", note=step))
        first, label = seconds_text(run.result.first_step_seconds), "time since resumed" if run.was_resumed else "time"
        cards.append(Card(label=label, value=seconds_text(run.result.wall_seconds), note=f"first call {first}"))
    performance = run.result_data.get("performance")
    for name, note in (("mfu", "of the machine's speed"), ("input_wait_share", "of the training time")):
        value = get_number(performance.get(name)) if isinstance(performance, dict) else None
        if value is not None:
            cards.append(Card(label=get_words(name), value=value_text(name, value), note=note))
    if run.rows:
        cards.append(Card(label="epochs", value=str(len(run.rows)), note=f"of {run.config.get('epochs') or '?'}"))
    return tuple(cards)


def _verdict(run: RunRecord) -> Message:
    if run.result is None:
        text = "No epoch has finished yet." if not run.rows else f"The run has not finished: {len(run.rows)} epochs."
        return Message(lines=(text,), tone="warning")
    verdict = run.result.verdict
    tone = "good" if verdict.kind == SOUND else "quiet" if verdict.kind == UNKNOWN else "warning"
    bottleneck = run.result_data.get("bottleneck")
    limit = bottleneck.get("text") if isinstance(bottleneck, dict) else None
    lines = [verdict.text(), *([f"Speed: {limit}."] if isinstance(limit, str) and limit else [])]
    lines += [f"Proof: {proof['text']}." for proof in (run.result.proof or {}).values()]
    left_out = run.result.left_out_batches
    if left_out:
        lines.append(f"{left_out} batches were left out: their loss or gradients were not finite.")
    return Message(lines=(*lines, *_scaling(run)), tone=tone)


def _scaling(run: RunRecord) -> list[str]:
    """How the learning rate was scaled, as a sentence; none if it was not."""
    scaled = run.result_data.get("learning_rate_scaling")
    if not isinstance(scaled, dict):
        return []
    names = ("learning_rate", "scaled_learning_rate", "recommended_batch_size", "global_batch_size")
    before, after, recommended, used = (get_number(scaled.get(name)) for name in names)
    if before is None or after is None or recommended is None or used is None:
        return []
    rule = str(scaled.get("rule", "unknown")).replace("_", " ")
    sizes = f"for the batch size {used:.0f} instead of the recommended {recommended:.0f}"
    return [f"Peak learning rate: {plain_number(before)}, scaled to {plain_number(after)} {sizes} ({rule} rule)."]


def comparison_blocks(runs: Sequence[RunRecord]) -> list[Block]:
    """Several runs side by side: their outcomes, and the settings that differ. Empty for one run."""
    if len(runs) < 2:
        return []
    blocks: list[Block] = [_outcomes(runs)]
    rows = list(_differences("", [_settings(run) for run in runs]))
    if rows:
        more = len(rows) - _MAX_DIFFERENCES
        caption = "Settings that differ" + (f" (the first {_MAX_DIFFERENCES}; {more} more)" if more > 0 else "")
        headings = ("setting", *(run.name for run in runs))
        blocks.append(Table(caption=caption, headings=headings, rows=tuple(rows[:_MAX_DIFFERENCES])))
    else:
        blocks.append(Message(lines=("All settings of these runs are the same.",), tone="quiet"))
    return blocks


def _outcomes(runs: Sequence[RunRecord]) -> Table:
    """One row per run; the best value of each column stands out, among runs of the same workload."""
    finals = _finals(runs)
    columns: dict[str, list[tuple[float | None, str]]] = {}
    for name in dict.fromkeys(name for final in finals for name in final):
        columns[name] = [(final.get(name), value_text(name, final.get(name))) for final in finals]
    for heading, unit, of in (
        ("examples/s", "examples_per_second", lambda result: result.examples_per_second or None),
        ("step", "step_seconds", lambda result: get_number(result.step_seconds.get("median"))),
        ("step p95", "step_seconds", lambda result: get_number(result.step_seconds.get("p95"))),
        ("first call", "first_step_seconds", lambda result: result.first_step_seconds),
        ("time", "wall_seconds", lambda result: result.wall_seconds),
    ):
        figures = [None if run.result is None else of(run.result) for run in runs]
        columns[heading] = [(value, value_text(unit, value).removesuffix(" examples/s")) for value in figures]
    columns["time"] = [
        (value, f"{text} since resumed" if run.was_resumed and value is not None else text)
        for run, (value, text) in zip(runs, columns["time"], strict=True)
    ]
    columns = {name: cells for name, cells in columns.items() if any(value is not None for value, _ in cells)}
    states = ["not finished" if run.result is None else run.result.verdict.kind for run in runs]
    rows = [
        (run.name, run.workload or NONE, states[place], *(cells[place][1] for cells in columns.values()))
        for place, run in enumerate(runs)
    ]
    strong = set()
    if len({run.workload for run in runs}) == 1:
        for column, (name, cells) in enumerate(columns.items(), 3):
            strong |= {(row, column) for row in _find_best(name, [value for value, _ in cells])}
    headings = ("run", "workload", "verdict", *columns)
    return Table(
        caption="Outcomes",
        headings=headings,
        rows=tuple(rows),
        numeric=frozenset(range(3, len(headings))),
        strong=frozenset(strong),
    )


def _finals(runs: Sequence[RunRecord]) -> list[dict[str, float]]:
    """The final metrics of each run; those on training data are named so if others are on validation data."""
    mixed = len({run.has_validation for run in runs if run.final}) > 1
    ends = [_ON_TRAINING if mixed and not run.has_validation else "" for run in runs]
    return [{f"{name}{end}": value for name, value in run.final.items()} for run, end in zip(runs, ends, strict=True)]


def _find_best(name: str, values: list[float | None]) -> list[int]:
    """The places of the best value; none if its direction is unknown, or all are equal.

    Nor of the times of whole calls, which may be those of different numbers of epochs.
    """
    known = [value for value in values if value is not None]
    if len(set(known)) < 2 or name in ("first call", "time"):
        return []
    try:
        direction = {"examples/s": "max", "step": "min", "step p95": "min"}.get(name)
        direction = direction or infer_direction(name.removesuffix(_ON_TRAINING))
    except SearchError:
        return []
    best = max(known) if direction == "max" else min(known)
    return [place for place, value in enumerate(values) if value == best]


def _settings(run: RunRecord) -> dict[str, Any]:
    """Options of the workload, fields of the plan, and what was built: the layers, the optimizer and others."""
    found = {name: value for name, value in run.config.items() if name not in ("run_id", *_PARTS)}
    for part in _PARTS:
        more = run.config.get(part)
        found |= more if isinstance(more, dict) else {}
    if run.plan is not None:
        found |= {name: getattr(run.plan, name) for name in plan_field_names()}
    return {str(name): value for name, value in found.items()}


def _differences(name: str, values: Sequence[Any]) -> Iterator[tuple[str, ...]]:
    """The settings that differ, each with its value in every run; of layers of other classes, only the classes."""
    classes = {str(value.get("class")) for value in values if isinstance(value, dict)}
    if all(isinstance(value, dict) for value in values) and len(classes) == 1:
        for key in dict.fromkeys(key for value in values for key in value):
            yield from _differences(f"{name}: {key}" if name else key, [value.get(key, _ABSENT) for value in values])
        return
    texts = [_setting(value) for value in values]
    if len(set(texts)) > 1:
        yield (name, *texts)


def _setting(value: Any) -> str:
    if value is _ABSENT:
        return NONE
    if isinstance(value, dict):
        return str(value.get("class", ", ".join(map(str, value))))[:_MAX_SETTING]
    text = setting_text(value)
    return text if len(text) <= _MAX_SETTING else f"{text[: _MAX_SETTING - 1]}…"


def settings_blocks(runs: Sequence[RunRecord]) -> list[Block]:
    """The options that each run was started with."""
    blocks: list[Block] = []
    for run in runs:
        options = run.config.get("options")
        rows = {
            **{n: v for n, v in run.config.items() if n not in ("options", "built", "run_id")},
            **(options if isinstance(options, dict) else {}),
        }
        if rows:
            blocks.append(
                Table(
                    caption=f"Options of {run.name}",
                    headings=("option", "value"),
                    rows=tuple((str(name), setting_text(value)) for name, value in rows.items()),
                    folded=True,
                )
            )
    return blocks


def environment_blocks(runs: Sequence[RunRecord]) -> list[Block]:
    """The machine and the versions of each run; runs of the same environment share a column."""
    columns: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run in runs:
        if run.result is not None:
            versions = sorted((str(name), str(version)) for name, version in run.result.versions.items())
            rows = (*_machine(run.result.hardware), *versions)
            columns.setdefault(rows, []).append(run.name)
    if not columns:
        return []
    found = [dict(rows) for rows in columns]
    names = list(dict.fromkeys(name for one in found for name in one))
    headings = [", ".join(of) if len(columns) > 1 else "value" for of in columns.values()]
    properties = tuple((name, *(one.get(name, NONE) for one in found)) for name in names)
    return [Table(caption="Where it was trained", headings=("property", *headings), rows=properties)]


def _machine(hardware: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [("CPU", str(hardware.get("cpu_model") or NONE))]
    cores, usable = hardware.get("num_physical_cores"), hardware.get("num_usable_cores")
    rows.append(("cores", f"{cores or '?'} physical, {usable or '?'} usable"))
    features = hardware.get("cpu_features")
    if isinstance(features, list):
        rows.append(("CPU features", ", ".join(map(str, features)) or "none that matter"))
    memory = get_number(hardware.get("memory_bytes"))
    rows.append(("memory", NONE if not memory else bytes_text(memory)))
    devices = hardware.get("devices")
    names = [_device(one) for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    rows.append(("accelerators", "; ".join(names) or "none"))
    cluster = hardware.get("cluster")
    if isinstance(cluster, dict):
        rows.append(("workers", setting_text(cluster.get("num_workers"))))
    return rows


def _device(device: Mapping[str, Any]) -> str:
    memory = get_number(device.get("memory_bytes"))
    parts = [f"{device.get('kind')}:{device.get('index')}", str(device.get("model") or "")]
    return " ".join(part for part in (*parts, bytes_text(memory) if memory else "") if part)


_VARIANT_COLORS = {"the float model": MUTED, "selected": GOOD, "within the limit": COLORS[0], "outside the limit": BAD}


def compress_blocks(result: CompressResult) -> list[Block]:
    """Sizes and latencies of compressed variants, and the table of `tfaccel compress`."""
    blocks: list[Block] = [Message(lines=tuple(result.summary()))]
    measured = [one for one in result.results if not one.failure and one.size_bytes]
    if measured:
        sizes = [one.size_bytes / 1000 for one in measured]
        blocks.append(_variant_chart(result, measured, sizes, title="File size", unit="kB"))
    timed = [one for one in measured if math.isfinite(one.best_seconds)]
    if timed:
        times = [one.best_seconds * 1e3 for one in timed]
        blocks.append(_variant_chart(result, timed, times, title="Latency of one example", unit="ms"))
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


def _variant_chart(
    result: CompressResult, measured: Sequence[VariantResult], figures: Sequence[float], *, title: str, unit: str
) -> Chart:
    """A bar for each variant, with its metric beside its name."""
    bars = []
    for one, figure in zip(measured, figures, strict=True):
        state = _variant_state(result, one)
        label = f"{one.variant.name}: {result.metric} {result.value(one):.4f}"
        text, color = result.verdict(one), _VARIANT_COLORS[state]
        bars.append(Bar(label=label, value=figure, color=color, meaning=state, text=text))
    said = "; ".join(f"{bar.label}, {bar.value:.4g} {unit}" for bar in bars)
    return bar_chart(bars, x_title=unit, title=title, description=f"{said}.")


def _variant_state(result: CompressResult, one: VariantResult) -> str:
    if result.is_float(one):
        return "the float model"
    if one is result.winner:
        return "selected"
    return "within the limit" if result.is_within(one) else "outside the limit"
