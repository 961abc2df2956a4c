"""The sections of what was written after each epoch and each trial: curves, speed, memory, scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tfaccel.html_report.figures import (
    BAD,
    COLORS,
    GOOD,
    MUTED,
    Series,
    get_color,
    get_shape,
    line_figure,
    with_logarithmic_axes,
)
from tfaccel.html_report.page import (
    NONE,
    Block,
    Chart,
    LegendEntry,
    Table,
    get_number,
    get_unit,
    get_words,
    plain_number,
    seconds_text,
    setting_text,
    value_text,
)
from tfaccel.html_report.records import VALIDATION, RunRecord, SearchRecord
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.search_result import TrialRow

_MAX_EPOCHS_IN_TABLE = 400
# Unit of a field -> the title of its chart, if one chart has several fields; charts stand in this order.
_SYSTEM = {
    "examples/s": "Throughput",
    "per second": "Throughput",
    "s": "Times",
    "share": "Utilization",
    "bytes": "Memory",
}
_RATE = "examples_per_second"
_WHOLE_EPOCHS = "examples/s of the whole epoch"

Numbered = Sequence[tuple[int, RunRecord]]  # runs with their numbers on the page, which decide their colors


def curve_blocks(runs: Sequence[RunRecord]) -> list[Block]:
    """A chart per metric and workload: training and validation, all runs."""
    names = [
        name for run in runs for name in run.fields() if not get_unit(name) or f"{VALIDATION}{name}" in run.fields()
    ]
    metrics = list(dict.fromkeys(name.removeprefix(VALIDATION) for name in names))
    metrics.sort(key=lambda name: (name != "loss", name == "learning_rate"))
    blocks: list[Block] = [
        _metric_chart(metric, some, of=of, is_one=len(runs) == 1)
        for metric in metrics
        for of, some in _by_workload(runs)
        if any(not {metric, f"{VALIDATION}{metric}"}.isdisjoint(run.fields()) for _, run in some)
    ]
    return [*blocks, *(_values_table(run) for run in runs if run.rows)] if metrics else []


def _by_workload(runs: Sequence[RunRecord]) -> list[tuple[str, Numbered]]:
    """The runs of each workload, after what is added to a title: values of several workloads share no axis."""
    groups: dict[str, list[tuple[int, RunRecord]]] = {}
    for number, run in enumerate(runs):
        groups.setdefault(run.workload, []).append((number, run))
    return [(f": {workload or 'unknown workload'}" * (len(groups) > 1), some) for workload, some in groups.items()]


def _metric_chart(metric: str, runs: Numbered, *, of: str, is_one: bool) -> Chart:
    series, legend, said = [], [], []
    kinds = set()
    for number, run in runs:
        drawn = False
        for name, kind in ((metric, "training"), (f"{VALIDATION}{metric}", "validation")):
            values = run.values(name)
            if not any(value is not None for value in values):
                continue
            drawn = True
            kinds.add(kind)
            color = get_color(kind == "validation") if is_one else get_color(number)
            shape = "line" if is_one else get_shape(number, has_dots=kind == "training")
            label = kind if is_one else f"{run.name}, {kind}"
            series.append(Series(name=label, x=run.epochs, y=values, color=color, shape=shape))
            said.append(f"{label}: {_first_to_last(values)}")
            if is_one:
                legend.append(LegendEntry(label=kind, color=color))
        if drawn and not is_one:
            legend.append(LegendEntry(label=run.name, color=get_color(number), shape=get_shape(number)))
    if not is_one and len(kinds) == 2:
        dots, none = ("", "") if number < len(COLORS) else (": with dots", ": without dots")
        legend.append(LegendEntry(label=f"validation{none}", color="currentColor"))
        legend.append(LegendEntry(label=f"training{dots}", color="currentColor", shape="dotted"))
    return Chart(
        title=f"{metric.replace('_', ' ')}{of}",
        description=f"{metric} after each epoch. {'; '.join(said)}.",
        figure=line_figure(series, x_title="epoch"),
        legend=tuple(legend),
    )


def _first_to_last(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{value_text('', known[0])} at first, {value_text('', known[-1])} at the end"


def _values_table(run: RunRecord) -> Table:
    """All values as a table, for readers who do not see the charts; the last epochs of a long run."""
    names = run.fields()
    rates = [] if _RATE in names else epoch_rates(run)
    derived = (_WHOLE_EPOCHS,) if any(rate is not None for rate in rates) else ()
    rows = list(zip(run.epochs, run.rows, rates or [None] * len(run.rows), strict=True))[-_MAX_EPOCHS_IN_TABLE:]
    cells = tuple(
        (str(epoch), *(value_text(name, row.get(name)) for name in names), *(value_text("", rate) for _ in derived))
        for epoch, row, rate in rows
    )
    cut = "" if len(rows) == len(run.rows) else f" (the last {len(rows)} epochs)"
    return Table(
        caption=f"Values of {run.name} after each epoch{cut}",
        headings=("epoch", *names, *derived),
        rows=cells,
        numeric=frozenset(range(len(names) + 1 + len(derived))),
        folded=True,
    )


def system_blocks(runs: Sequence[RunRecord]) -> list[Block]:
    """Throughput, times, utilization and memory after each epoch, as far as the runs hold them."""
    fields = list(dict.fromkeys(name for run in runs for name in run.fields()))
    metrics = {name for run in runs for name in run.fields() if f"{VALIDATION}{name}" in run.fields()}
    own = [name for name in fields if name not in metrics and not name.startswith(VALIDATION)]
    groups, is_one = _by_workload(runs), len(runs) == 1
    found = [_derived_throughput(some, of=of, is_one=is_one) for of, some in groups]
    blocks: list[Block] = [chart for chart in found if chart is not None]
    for unit in _SYSTEM:
        names = [name for name in own if get_unit(name) == unit]
        if is_one and len(names) > 1 and unit != "per second":
            blocks.append(_field_chart(unit, names, groups[0][1], is_one=True))
        else:
            blocks += [
                _field_chart(unit, [name], some, of=of, is_one=is_one)
                for name in names
                for of, some in groups
                if any(name in run.fields() for _, run in some)
            ]
    return blocks


def _field_chart(unit: str, names: Sequence[str], runs: Numbered, *, is_one: bool, of: str = "") -> Chart:
    """Several fields of one run, or one field of several runs."""
    by_field = len(names) > 1
    found = [(place, name, number, run) for place, name in enumerate(names) for number, run in runs]
    found = [one for one in found if _last(one[3], one[1]) is not None]
    scale, y_title = _scale(unit, [value for _, name, _, run in found for value in run.values(name)])
    series = [
        Series(
            name=get_words(name) if by_field else run.name,
            x=run.epochs,
            y=[None if value is None else value * scale for value in run.values(name)],
            color=get_color(place if by_field else number),
            shape=get_shape(place if by_field else number),
        )
        for place, name, number, run in found
    ]
    last = "; ".join(
        f"{run.name}, {get_words(name)}: {value_text(name, _last(run, name))}" for _, name, _, run in found
    )
    title = _SYSTEM[unit] if by_field else get_words(names[0]) + (" time" if names[0] == "step_seconds" else "")
    return Chart(
        title=f"{title[0].upper()}{title[1:]}{of}",
        description=f"After each epoch. At the end: {last}.",
        figure=line_figure(series, x_title="epoch", y_title=y_title, percent=unit == "share", from_zero=True),
        legend=() if is_one and len(series) == 1 else _legend(series),
    )


def _legend(series: Sequence[Series]) -> tuple[LegendEntry, ...]:
    return tuple(LegendEntry(label=one.name, color=one.color, shape=one.shape) for one in series)


def _scale(unit: str, values: Sequence[float | None]) -> tuple[float, str]:
    """What values are multiplied with, and the title of their axis."""
    largest = max((value for value in values if value is not None), default=0.0)
    if unit == "bytes":
        return (1 / 2**30, "GiB") if largest >= 2**31 else (1 / 2**20, "MiB")
    if unit == "s":
        return (1000.0, "ms") if largest < 1 else (1.0, "seconds")
    return 1.0, "" if unit == "share" else unit


def _last(run: RunRecord, name: str) -> float | None:
    return next((value for value in reversed(run.values(name)) if value is not None), None)


def _derived_throughput(runs: Numbered, *, of: str, is_one: bool) -> Chart | None:
    """Examples per second of each epoch, from its steps and its wall time, of the runs that did not measure it."""
    found = [(number, run, epoch_rates(run)) for number, run in runs if _RATE not in run.fields()]
    found = [(number, run, rates) for number, run, rates in found if any(rate is not None for rate in rates)]
    if not found:
        return None
    series = [
        Series(name=run.name, x=run.epochs, y=rates, color=get_color(number), shape=get_shape(number))
        for number, run, rates in found
    ]
    known = {run.name: [rate for rate in rates if rate is not None] for _, run, rates in found}
    said = [f"{name}: from {min(rates):,.0f} to {max(rates):,.0f}" for name, rates in known.items()]
    return Chart(
        title=f"Examples per second of whole epochs{of}",
        description=f"{'; '.join(said)} examples per second.",
        figure=line_figure(series, x_title="epoch", y_title="examples/s", from_zero=True),
        legend=() if is_one else _legend(series),
        note="By wall time: with validation and checkpoints, and at the start of a process tracing and compilation.",
    )


def epoch_rates(run: RunRecord) -> list[float | None]:
    """Examples per second of each epoch's wall time; None where a resumed run's clock began anew.

    Example:
        >>> from pathlib import Path
        >>> config = {"global_batch_size": 10}
        >>> rows = ({"step": 5, "seconds": 2.0}, {"step": 10, "seconds": 3.0}, {"step": 15, "seconds": 1.0})
        >>> epoch_rates(RunRecord(path=Path("run"), name="run", config=config, result_data={}, rows=rows))
        [25.0, 50.0, None]
    """
    batch = get_number(run.config.get("global_batch_size")) or (run.plan and run.plan.global_batch_size)
    if not batch:
        return [None] * len(run.rows)
    rates: list[float | None] = []
    step, seconds = 0.0, 0.0
    for row in run.rows:
        now, then = (get_number(row.get("step")), get_number(row.get("seconds")))
        ok = now is not None and then is not None and now > step and then > seconds
        rates.append(batch * (now - step) / (then - seconds) if ok else None)  # type: ignore[operator]
        step, seconds = now or step, then or seconds
    return rates


_MAX_CHARTS = 12  # of hyperparameters
_MAX_DIGITS = 10  # of an id that is a number
_LOGARITHMIC = 50.0  # ratio of the largest to the smallest value of a logarithmic axis
_STATUS_COLORS = {"completed": COLORS[0], "pruned": MUTED, "failed": BAD}


def search_blocks(search: SearchRecord) -> list[Block]:
    """Scores over trials and hyperparameters, the Pareto front, all trials as a table, and the search's pictures."""
    result = search.result
    scored = [row for row in result.rows if row.has_score and get_number(row.score) is not None]
    blocks: list[Block] = []
    if scored:
        blocks.append(_score_chart(scored, result.objective))
        if len(result.objective.parts) > 1:
            blocks += _pareto_charts(scored, result.pareto, result.objective)
        names = list(dict.fromkeys(name for row in scored for name in row.hyperparameters))
        varied = [name for name in names if len({str(row.hyperparameters.get(name)) for row in scored}) > 1]
        blocks += [_hyperparameter_chart(name, scored, result.objective) for name in varied[:_MAX_CHARTS]]
    if result.rows:
        blocks.append(_trial_table(search))
    return [*blocks, *search.pictures]


def _score_name(objective: Objective) -> str:
    return objective.name if len(objective.parts) == 1 else "combined objective (lower is better)"


def _score_chart(scored: Sequence[TrialRow], objective: Objective) -> Chart:
    """The score of each trial, and the best one so far."""
    x_title, numbers, scored = _get_places(scored)
    best: list[float | None] = []
    for row in scored:
        score = float(row.score or 0.0)
        last = best[-1] if best else None
        best.append(score if last is None or objective.better(score, last) else last)
    name = _score_name(objective)
    series = [Series(name="best so far", x=numbers, y=best, color=GOOD)]
    series += _by_status(scored, numbers)
    final = best[-1]
    return Chart(
        title=f"{name} of each trial",
        description=f"{len(scored)} trials with a score; the best one has {value_text('', final)}.",
        figure=line_figure(series, x_title=x_title),
        legend=_legend(series),
    )


def _get_places(rows: Sequence[TrialRow]) -> tuple[str, list[int], Sequence[TrialRow]]:
    """The title of an axis of trials, their places on it, and the trials in this order: by id where it is a number."""
    if all(row.trial_id.isdecimal() and len(row.trial_id) < _MAX_DIGITS for row in rows):
        rows = sorted(rows, key=lambda row: int(row.trial_id))
        return "trial", [int(row.trial_id) for row in rows], rows
    return "scored trials", list(range(1, len(rows) + 1)), rows


def _by_status(rows: Sequence[TrialRow], x: Sequence[Any]) -> list[Series]:
    """The scores as dots, colored by the trial's status."""
    found = []
    for status, color in _STATUS_COLORS.items():
        some = [(place, row) for place, row in zip(x, rows, strict=True) if row.status == status]
        found += _dots(
            status, color, [place for place, _ in some], [row.score for _, row in some], [row for _, row in some]
        )
    return found


def _dots(
    name: str, color: str, x: Sequence[Any], y: Sequence[float | None], trials: Sequence[TrialRow]
) -> list[Series]:
    """A dot for each trial, with its id; no series without trials."""
    texts = [f"trial {trial.trial_id}" for trial in trials]
    return [Series(name=name, x=x, y=y, color=color, shape="dot", texts=texts)] if trials else []


def _pareto_charts(scored: Sequence[TrialRow], pareto: Sequence[TrialRow], objective: Objective) -> list[Block]:
    """The first metric of the objective over each of the others, with the Pareto front marked."""
    (first, _), *others = objective.parts
    front = {row.trial_id for row in pareto}
    charts: list[Block] = []
    for other, _ in others:
        rows = [row for row in scored if {first, other} <= row.finite_metrics.keys()]
        if not rows:
            continue
        series = []
        for label, color, is_on in (("Pareto front", GOOD, True), ("other trials", MUTED, False)):
            some = [row for row in rows if (row.trial_id in front) == is_on]
            x, y = ([row.finite_metrics[name] for row in some] for name in (other, first))
            series += _dots(label, color, x, y, some)
        charts.append(
            Chart(
                title=f"{first} over {other}",
                description=f"{len(rows)} trials, {len(front)} of them on the Pareto front of all metrics.",
                figure=line_figure(series, x_title=other, y_title=first),
                legend=_legend(series),
            )
        )
    return charts


def _hyperparameter_chart(name: str, scored: Sequence[TrialRow], objective: Objective) -> Chart:
    rows = [row for row in scored if row.hyperparameters.get(name) is not None]
    values = [row.hyperparameters[name] for row in rows]
    numbers = [get_number(value) for value in values]
    known = [value for value in numbers if value is not None]
    are_numbers = len(known) == len(values)
    x: Sequence[Any] = known if are_numbers else [setting_text(value) for value in values]
    figure = line_figure(_by_status(rows, x), x_title=name, y_title=_score_name(objective).partition(" (")[0])
    if are_numbers and min(known) > 0 and max(known) / min(known) >= _LOGARITHMIC:
        figure = with_logarithmic_axes(figure, only_x=True)
    best = max(rows, key=lambda row: (1 if objective.direction == "max" else -1) * (row.score or 0.0))
    return Chart(
        title=name,
        description=f"Scores over {name}. The best trial has {_hyperparameter(best.hyperparameters[name])}.",
        figure=figure,
    )


def _trial_table(search: SearchRecord) -> Table:
    """All trials: the best ones first, then those without a score."""
    result = search.result
    ranked = [*result.ranked(), *(row for row in result.rows if not row.has_score)]
    names = list(dict.fromkeys(name for row in ranked for name in row.hyperparameters))
    extra = list(result.objective.names) if len(result.objective.parts) > 1 else []
    rows = []
    for row in ranked:
        metrics: Mapping[str, float] = row.finite_metrics
        score = NONE if row.score is None or not math.isfinite(row.score) else f"{row.score:.4g}"
        rows.append(
            (
                row.trial_id,
                score,
                *(value_text(name, metrics.get(name)) for name in extra),
                row.status if not row.cause else f"{row.status}: {row.cause}",
                seconds_text(row.seconds),
                *(_hyperparameter(row.hyperparameters.get(name)) for name in names),
            )
        )
    headings = ("trial", "score", *extra, "status", "time", *names)
    return Table(
        caption=f"Trials, best first ({', '.join(map(':'.join, result.objective.parts))})",
        headings=headings,
        rows=tuple(rows),
        numeric=frozenset({1, *range(2, 2 + len(extra)), 3 + len(extra)}),
        strong=frozenset({(0, 0), (0, 1)}) if result.best is not None else frozenset(),
    )


def _hyperparameter(value: Any) -> str:
    if value is None:
        return NONE
    number = get_number(value)
    return setting_text(value) if number is None else plain_number(number)
