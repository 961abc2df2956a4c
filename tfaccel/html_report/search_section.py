"""The section of a search: scores over trials and hyperparameters, the Pareto front, and all trials as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tfaccel.html_report.blocks import Block, Chart, LegendEntry, Section, Table
from tfaccel.html_report.figures import BAD, COLORS, GOOD, MUTED, Series, line_figure, with_logarithmic_axes
from tfaccel.html_report.found_records import SearchRecord
from tfaccel.html_report.texts import NONE, get_number, plain_number, seconds_text, setting_text, value_text
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.trial_row import TrialRow

_MAX_CHARTS = 12  # of hyperparameters
_MAX_DIGITS = 10  # of an id that is a number
_LOGARITHMIC = 50.0  # ratio of the largest to the smallest value of a logarithmic axis
_COLORS = {"completed": COLORS[0], "pruned": MUTED, "failed": BAD}


def search_sections(searches: Sequence[SearchRecord]) -> list[Section]:
    """A section for each search."""
    several = len(searches) > 1
    return [
        Section(
            anchor=f"search-{number}" if several else "search",
            title=f"Search {search.name}" if several else "Search",
            blocks=_blocks(search),
        )
        for number, search in enumerate(searches, 1)
    ]


def _blocks(search: SearchRecord) -> list[Block]:
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
        legend=(LegendEntry(label="best so far", color=GOOD), *_status_legend(scored)),
    )


def _get_places(rows: Sequence[TrialRow]) -> tuple[str, list[int], Sequence[TrialRow]]:
    """The title of an axis of trials, their places on it, and the trials in this order: by id where it is a number."""
    if all(row.trial_id.isdecimal() and len(row.trial_id) < _MAX_DIGITS for row in rows):
        rows = sorted(rows, key=lambda row: int(row.trial_id))
        return "trial", [int(row.trial_id) for row in rows], rows
    return "scored trials", list(range(1, len(rows) + 1)), rows


def _by_status(rows: Sequence[TrialRow], x: Sequence[Any], y: Sequence[float | None] | None = None) -> list[Series]:
    """Dots, colored by the trial's status."""
    y = [row.score for row in rows] if y is None else y
    found = []
    for status, color in _COLORS.items():
        places = [place for place, row in enumerate(rows) if row.status == status]
        if places:
            found.append(
                Series(
                    name=status,
                    x=[x[place] for place in places],
                    y=[y[place] for place in places],
                    color=color,
                    shape="dot",
                    texts=[f"trial {rows[place].trial_id}" for place in places],
                )
            )
    return found


def _status_legend(rows: Sequence[TrialRow]) -> tuple[LegendEntry, ...]:
    states = {row.status for row in rows}
    return tuple(LegendEntry(label=s, color=color, shape="dot") for s, color in _COLORS.items() if s in states)


def _pareto_charts(scored: Sequence[TrialRow], pareto: Sequence[TrialRow], objective: Objective) -> list[Block]:
    """The first metric of the objective over each of the others, with the Pareto front marked."""
    (first, _), *others = objective.parts
    front = {row.trial_id for row in pareto}
    charts: list[Block] = []
    for other, _ in others:
        rows = [row for row in scored if {first, other} <= row.finite_metrics.keys()]
        if not rows:
            continue
        series, legend = [], []
        for label, color, is_on in (("Pareto front", GOOD, True), ("other trials", MUTED, False)):
            some = [row for row in rows if (row.trial_id in front) == is_on]
            if some:
                texts = [f"trial {row.trial_id}" for row in some]
                x, y = ([row.finite_metrics[name] for row in some] for name in (other, first))
                series.append(Series(name=label, x=x, y=y, color=color, shape="dot", texts=texts))
                legend.append(LegendEntry(label=label, color=color, shape="dot"))
        charts.append(
            Chart(
                title=f"{first} over {other}",
                description=f"{len(rows)} trials, {len(front)} of them on the Pareto front of all metrics.",
                figure=line_figure(series, x_title=other, y_title=first),
                legend=tuple(legend),
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
    figure = line_figure(_by_status(rows, x), x_title=name, y_title=_short(_score_name(objective)))
    if are_numbers and min(known) > 0 and max(known) / min(known) >= _LOGARITHMIC:
        figure = with_logarithmic_axes(figure, only_x=True)
    best = max(rows, key=lambda row: (1 if objective.direction == "max" else -1) * (row.score or 0.0))
    return Chart(
        title=name,
        description=f"Scores over {name}. The best trial has {_hyperparameter(best.hyperparameters[name])}.",
        figure=figure,
    )


def _short(name: str) -> str:
    return name.partition(" (")[0]


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
