"""A plot of the importance of each hyperparameter in a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import BLUE, new_figure, saved, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def importance_figure(shares: Mapping[str, float], *, objective: str) -> Figure:
    """Plots one bar per hyperparameter.

    Args:
        shares: hyperparameter -> its importance, from 0 to 1, in the order of the bars.
        objective: name of the score.

    Raises:
        DataError: if there are no hyperparameters.

    Example:
        >>> importance_figure({"learning_rate": 0.8, "units": 0.2}, objective="accuracy").axes[0].get_title()
        'What accuracy depends on'
    """
    if not shares:
        raise DataError("An importance plot needs at least one hyperparameter. Received none.")
    figure = new_figure(640, 70 + 30 * len(shares))
    axes = figure.add_subplot()
    bars = axes.barh(range(len(shares)), list(shares.values()), color=BLUE)
    axes.bar_label(bars, [f"{share:.0%}" for share in shares.values()], padding=3)
    axes.set_yticks(range(len(shares)), [shown(name, 40) for name in shares])
    axes.set(xlim=(0, 1.1 * max(*shares.values(), 1e-9)), xticks=[], title=f"What {shown(objective, 40)} depends on")
    axes.invert_yaxis()
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    return figure


save_importance_picture = saved(importance_figure)
