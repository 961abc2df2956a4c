"""A plot of a metric over the epochs, one line per run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import BLUE, GREY, LIGHT, ORANGE, new_figure, saved, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = (BLUE, ORANGE, GREY)


def curve_figure(curves: Mapping[str, Sequence[float]], *, name: str) -> Figure:
    """Plots one line per run through its values after each epoch.

    Args:
        curves: run -> one value per epoch; at most three runs.
        name: label of the y axis.

    Raises:
        DataError: if there are no runs or more than three, or a run has no values.

    Example:
        >>> curve_figure({"fine-tuned": [0.7, 0.9], "from scratch": [0.2, 0.6]}, name="accuracy").axes[0].get_xlabel()
        'epoch'
    """
    from matplotlib.ticker import MaxNLocator

    if not 0 < len(curves) <= len(_COLORS) or not all(len(values) for values in curves.values()):
        lengths = {run: len(values) for run, values in curves.items()}
        raise DataError(f"A plot needs values of 1 to {len(_COLORS)} runs. Received numbers of values: {lengths}.")
    figure = new_figure(640, 420)
    axes = figure.add_subplot()
    for (run, values), color in zip(curves.items(), _COLORS, strict=False):
        axes.plot(range(1, len(values) + 1), values, color=color, marker="o", markersize=4, label=shown(run, 30))
    axes.set(xlabel="epoch", ylabel=shown(name, 50))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(color=LIGHT)
    figure.legend(loc="outside upper center", ncols=len(curves), frameon=False)
    return figure


save_curve_picture = saved(curve_figure)
