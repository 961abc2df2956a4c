"""The sections of what was written after each epoch: learning curves, throughput, times, utilization, memory."""

from __future__ import annotations

from collections.abc import Sequence

from tfaccel.html_report.blocks import Block, Chart, LegendEntry, Section, Table
from tfaccel.html_report.figures import Series, color_of, line_figure
from tfaccel.html_report.run_record import RunRecord
from tfaccel.html_report.texts import number_of, unit_of, value_text, words_of

VALIDATION = "val_"
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


def curve_section(runs: Sequence[RunRecord]) -> Section:
    """A chart per metric: training and validation, all runs."""
    names = [
        name for run in runs for name in run.fields() if not unit_of(name) or f"{VALIDATION}{name}" in run.fields()
    ]
    metrics = list(dict.fromkeys(name.removeprefix(VALIDATION) for name in names))
    metrics.sort(key=lambda name: (name != "loss", name == "learning_rate"))
    blocks: list[Block] = [_metric_chart(metric, runs) for metric in metrics]
    blocks += [_values_table(run) for run in runs if run.rows]
    if not metrics:
        return Section(anchor="curves", title="Learning curves")
    return Section(anchor="curves", title="Learning curves", blocks=blocks)


def _metric_chart(metric: str, runs: Sequence[RunRecord]) -> Chart:
    series, legend, said = [], [], []
    is_one = len(runs) == 1
    kinds = set()
    for number, run in enumerate(runs):
        drawn = False
        for name, kind in ((metric, "training"), (f"{VALIDATION}{metric}", "validation")):
            values = run.values(name)
            if not any(value is not None for value in values):
                continue
            drawn = True
            kinds.add(kind)
            color = color_of(kind == "validation") if is_one else color_of(number)
            shape = "dotted" if kind == "training" and not is_one else "line"
            label = kind if is_one else f"{run.name}, {kind}"
            series.append(Series(name=label, x=run.epochs, y=values, color=color, shape=shape))
            said.append(f"{label}: {_first_to_last(values)}")
            if is_one:
                legend.append(LegendEntry(label=kind, color=color))
        if drawn and not is_one:
            legend.append(LegendEntry(label=run.name, color=color_of(number)))
    if not is_one and len(kinds) == 2:
        legend.append(LegendEntry(label="validation", color="currentColor"))
        legend.append(LegendEntry(label="training", color="currentColor", shape="dotted"))
    return Chart(
        title=metric.replace("_", " "),
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
    rows = list(zip(run.epochs, run.rows, strict=True))[-_MAX_EPOCHS_IN_TABLE:]
    cells = tuple((str(epoch), *(value_text(name, row.get(name)) for name in names)) for epoch, row in rows)
    cut = "" if len(rows) == len(run.rows) else f" (the last {len(rows)} epochs)"
    return Table(
        caption=f"Values of {run.name} after each epoch{cut}",
        headings=("epoch", *names),
        rows=cells,
        numeric=frozenset(range(len(names) + 1)),
        folded=True,
    )


def system_section(runs: Sequence[RunRecord]) -> Section:
    """Throughput, times, utilization and memory after each epoch, as far as the runs hold them."""
    fields = list(dict.fromkeys(name for run in runs for name in run.fields()))
    metrics = {name for run in runs for name in run.fields() if f"{VALIDATION}{name}" in run.fields()}
    own = [name for name in fields if name not in metrics and not name.startswith(VALIDATION)]
    blocks: list[Block] = [] if _RATE in fields else _derived_throughput(runs)
    for unit in _SYSTEM:
        names = [name for name in own if unit_of(name) == unit]
        if len(runs) == 1 and len(names) > 1 and unit != "per second":
            blocks.append(_field_chart(unit, names, runs))
        else:
            blocks += [_field_chart(unit, [name], runs) for name in names]
    return Section(anchor="speed", title="Speed and utilization", blocks=blocks)


def _field_chart(unit: str, names: Sequence[str], runs: Sequence[RunRecord]) -> Chart:
    """Several fields of one run, or one field of several runs."""
    by_field = len(names) > 1
    found = [(place, name, number, run) for place, name in enumerate(names) for number, run in enumerate(runs)]
    found = [one for one in found if _last(one[3], one[1]) is not None]
    scale, y_title = _scale(unit, [value for _, name, _, run in found for value in run.values(name)])
    series = [
        Series(
            name=words_of(name) if by_field else run.name,
            x=run.epochs,
            y=[None if value is None else value * scale for value in run.values(name)],
            color=color_of(place if by_field else number),
        )
        for place, name, number, run in found
    ]
    last = "; ".join(f"{run.name}, {words_of(name)}: {value_text(name, _last(run, name))}" for _, name, _, run in found)
    title = _SYSTEM[unit] if by_field else words_of(names[0]) + (" time" if names[0] == "step_seconds" else "")
    legend = tuple(LegendEntry(label=one.name, color=one.color) for one in series)
    return Chart(
        title=title[0].upper() + title[1:],
        description=f"After each epoch. At the end: {last}.",
        figure=line_figure(series, x_title="epoch", y_title=y_title, percent=unit == "share", from_zero=True),
        legend=legend if len(series) > 1 else (),
    )


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


def _derived_throughput(runs: Sequence[RunRecord]) -> list[Block]:
    """Examples per second of each epoch, from its steps and its wall time."""
    found = [(number, run, epoch_rates(run)) for number, run in enumerate(runs)]
    found = [(number, run, rates) for number, run, rates in found if any(rate is not None for rate in rates)]
    if not found:
        return []
    series = [Series(name=run.name, x=run.epochs, y=rates, color=color_of(number)) for number, run, rates in found]
    said = []
    for _, run, rates in found:
        known = [rate for rate in rates if rate is not None]
        said.append(f"{run.name}: from {min(known):,.0f} to {max(known):,.0f}")
    chart = Chart(
        title="Examples per second of whole epochs",
        description=f"{'; '.join(said)} examples per second.",
        figure=line_figure(series, x_title="epoch", y_title="examples/s", from_zero=True),
        legend=tuple(LegendEntry(label=one.name, color=one.color) for one in series) if len(runs) > 1 else (),
        note="By wall time: with validation and checkpoints, and at the start of a process tracing and compilation.",
    )
    return [chart]


def epoch_rates(run: RunRecord) -> list[float | None]:
    """Examples per second of each epoch's wall time; None where a resumed run's clock began anew.

    Example:
        >>> from pathlib import Path
        >>> config = {"global_batch_size": 10}
        >>> rows = ({"step": 5, "seconds": 2.0}, {"step": 10, "seconds": 3.0}, {"step": 15, "seconds": 1.0})
        >>> epoch_rates(RunRecord(path=Path("run"), name="run", config=config, result_data={}, rows=rows))
        [25.0, 50.0, None]
    """
    batch = number_of(run.config.get("global_batch_size")) or (run.plan and run.plan.global_batch_size)
    if not batch:
        return [None] * len(run.rows)
    rates: list[float | None] = []
    step, seconds = 0.0, 0.0
    for row in run.rows:
        now, then = (number_of(row.get("step")), number_of(row.get("seconds")))
        ok = now is not None and then is not None and now > step and then > seconds
        rates.append(batch * (now - step) / (then - seconds) if ok else None)  # type: ignore[operator]
        step, seconds = now or step, then or seconds
    return rates
