"""Charts of a search: the trials over their hyperparameters, and the importance of each."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfaccel.errors import DataError
from tfaccel.reporting.figures import BLUE, GREY, ORANGE, SMALL, new_figure, saved, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_PITCH, _HEIGHT = 150, 430  # distance between axes, and height of the plot, in pixels
_PALEST = 0.25  # position of the palest line in the color map
_CLOSE = 0.05  # closer labels would overlap
_FEW = 4  # up to this many distinct numbers are all labeled


@dataclass(frozen=True)
class _Axis:
    """The axis of a hyperparameter: the position of each trial from 0 (bottom) to 1 (top), and its labels."""

    name: str
    places: tuple[float, ...]
    labels: tuple[tuple[float, str], ...]


def parallel_coordinates_figure(
    values: Sequence[Mapping[str, Any]],
    scores: Sequence[float],
    *,
    names: Sequence[str],
    objective: str,
    rising: bool,
    logarithmic: Collection[str] = (),
) -> Figure:
    """Plots one line per trial through its hyperparameters to its score.

    The best trial is orange; the better a trial, the darker its line.

    Args:
        values: the hyperparameters of each trial.
        scores: the score of each trial.
        names: the hyperparameters, in the order of the axes.
        objective: name of the score.
        rising: whether a higher score is better.
        logarithmic: hyperparameters with a logarithmic axis.

    Raises:
        DataError: if there are no trials, or the numbers of trials and scores differ.

    Example:
        >>> trials = [{"rate": 0.1, "model": "a"}, {"rate": 0.001, "model": "b"}]
        >>> figure = parallel_coordinates_figure(trials, [0.5, 0.9], names=["rate", "model"], objective="accuracy",
        ...                                      rising=True, logarithmic=["rate"])
        >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
        ['rate', 'model', 'accuracy']
    """
    from matplotlib import colormaps

    if not values or len(values) != len(scores):
        raise DataError(
            f"A plot of trials needs one score per trial. Received: {len(values)} trials, {len(scores)} scores."
        )
    all_axes = [_axis(name, [trial.get(name) for trial in values], name in logarithmic) for name in names]
    all_axes.append(_axis(objective, list(scores), False))
    figure = new_figure(_PITCH * (len(all_axes) - 1) + 190, _HEIGHT)
    axes = figure.add_subplot()
    order = sorted(range(len(scores)), key=lambda trial: scores[trial], reverse=not rising)
    for rank, trial in enumerate(order):
        is_best = rank == len(order) - 1
        color = ORANGE if is_best else colormaps["Blues"](_PALEST + (1 - _PALEST) * rank / len(order))
        points = [axis.places[trial] for axis in all_axes]
        axes.plot(points, color=color, marker="o", markersize=3, linewidth=2.5 if is_best else 1)
    for index, axis in enumerate(all_axes):
        axes.axvline(index, color=GREY, linewidth=1)
        for place, label in axis.labels:
            axes.annotate(
                shown(label, 14),
                (index, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=SMALL,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )
    axes.set_xticks(range(len(all_axes)), [shown(axis.name, 19) for axis in all_axes], fontsize=SMALL + 1)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set(yticks=[], xlim=(-0.1, len(all_axes) - 1 + 0.7), ylim=(-0.05, 1.05))
    axes.spines[:].set_visible(False)
    return figure


save_parallel_coordinates = saved(parallel_coordinates_figure)


def _axis(name: str, values: list[Any], logarithmic: bool) -> _Axis:
    known = [value for value in values if value is not None]
    if any(isinstance(value, str | bool) for value in known) or len(set(known)) == 1:
        kinds = sorted({str(value) for value in known})
        spots = {kind: 0.5 if len(kinds) == 1 else place / (len(kinds) - 1) for place, kind in enumerate(kinds)}
        places = tuple(math.nan if value is None else spots[str(value)] for value in values)
        return _Axis(name, places, tuple((place, kind) for kind, place in spots.items()))
    finite = [value for value in known if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    scale = math.log if logarithmic and low > 0 else float
    width = (scale(high) - scale(low)) or 1.0
    places = tuple(
        math.nan if value is None or not math.isfinite(value) else (scale(value) - scale(low)) / width
        for value in values
    )
    several = dict(zip(places, values, strict=True)) if len(set(finite)) <= _FEW else {}
    middle = [(place, f"{value:.4g}") for place, value in several.items() if _CLOSE < place < 1.0 - _CLOSE]
    return _Axis(name, places, ((0.0, f"{low:.4g}"), *middle, (1.0, f"{high:.4g}")))


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
