"""A plot of a model's variants: size and metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import BLACK, BLUE, GREY, LIGHT, ORANGE, new_figure, place_labels, saved, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STATES = {
    "float": (BLACK, "as trained"),
    "winner": (ORANGE, "smallest within the limit"),
    "passes": (BLUE, "within the limit"),
    "fails": (GREY, "outside the limit"),
}


@dataclass(frozen=True)
class SizedForm:
    """One variant in the plot.

    Attributes:
        name: name of the variant.
        size_bytes: size of its file, the x axis.
        metric: its metric, the y axis.
        state: "float", "winner", "passes" or "fails".
    """

    name: str
    size_bytes: int
    metric: float
    state: str


def size_metric_figure(forms: Sequence[SizedForm], *, metric: str, limit: float) -> Figure:
    """Plots the metric of each variant over its size, and a line at the limit.

    Args:
        forms: the variants; those without a finite metric are left out.
        metric: name of the metric.
        limit: the worst acceptable value of the metric.

    Raises:
        DataError: if no variant has a finite metric.

    Example:
        >>> forms = [SizedForm("float32", 4000, 0.98, "float"), SizedForm("int8", 1000, 0.97, "winner")]
        >>> size_metric_figure(forms, metric="accuracy", limit=0.97).axes[0].get_ylabel()
        'accuracy'
    """
    drawn = [form for form in forms if math.isfinite(form.metric)]
    if not drawn:
        raise DataError("A plot of sizes and metrics needs at least one variant with both. Received none.")
    figure = new_figure(800, 500)
    axes = figure.add_subplot()
    for state, (color, text) in _STATES.items():
        chosen = [form for form in drawn if form.state == state]
        if chosen:
            sizes, metrics = [form.size_bytes / 1000 for form in chosen], [form.metric for form in chosen]
            axes.plot(sizes, metrics, "o", color=color, markersize=9, label=text)
    axes.axhline(limit, color=ORANGE, linewidth=1, linestyle="--", label="limit")
    axes.set(xlabel="size of the file in kB", ylabel=shown(metric, 40))
    axes.set_xlim(0, 1.15 * max(form.size_bytes for form in drawn) / 1000)
    axes.margins(y=0.12)
    axes.grid(color=LIGHT)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    figure.draw_without_rendering()  # moves the axes to their final position
    labels = [
        (shown(form.name, 30), (form.size_bytes / 1000, form.metric) * 2, _STATES[form.state][0]) for form in drawn
    ]
    place_labels(axes, labels, pad=6, keep_all=True)
    return figure


save_size_metric_picture = saved(size_metric_figure)
