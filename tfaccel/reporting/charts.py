"""Charts of scores, losses, sizes, speeds and searches, one function each."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.errors import DataError
from tfaccel.planning.machine_ceilings import compute_dtype
from tfaccel.reporting.figures import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    SMALL,
    add_legend,
    new_figure,
    new_plot,
    place_labels,
    saved,
    shown,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tfaccel.measuring.roofline import Roofline


_CURVE_COLORS = (BLUE, ORANGE, GREY)
_MARGIN = 0.1  # of the range of losses; those far above the smoothed ones are not shown
_MAX_POINTS = 2000
_FORM_STATES = {
    "float": (BLACK, "as trained"),
    "winner": (ORANGE, "smallest within the limit"),
    "passes": (BLUE, "within the limit"),
    "fails": (GREY, "outside the limit"),
}
_NUM_LABELS = 8
_PITCH, _HEIGHT = 150, 430  # distance between axes, and height of the plot, in pixels
_PALEST = 0.25  # position of the palest line in the color map
_CLOSE = 0.05  # closer labels would overlap
_FEW = 4  # up to this many distinct numbers are all labeled


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

    if not 0 < len(curves) <= len(_CURVE_COLORS) or not all(len(values) for values in curves.values()):
        lengths = {run: len(values) for run, values in curves.items()}
        raise DataError(
            f"A plot needs values of 1 to {len(_CURVE_COLORS)} runs. Received numbers of values: {lengths}."
        )
    figure, axes = new_plot(640, 420)
    for (run, values), color in zip(curves.items(), _CURVE_COLORS, strict=False):
        axes.plot(range(1, len(values) + 1), values, color=color, marker="o", markersize=4, label=shown(run, 30))
    axes.set(xlabel="epoch", ylabel=shown(name, 50))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    add_legend(figure, len(curves))
    return figure


save_curve_picture = saved(curve_figure)


def learning_rate_figure(
    learning_rates: Sequence[float],
    losses: Sequence[float],
    smoothed_losses: Sequence[float],
    *,
    suggestion: float | None = None,
    logarithmic: bool = True,
) -> Figure:
    """Plots the loss of each step and its moving average over the step's learning rate.

    Args:
        learning_rates: the tested rates, ascending.
        losses, smoothed_losses: one value for each.
        suggestion: a rate to mark; None for none.
        logarithmic: whether the axis of the rates is logarithmic.

    Example:
        >>> figure = learning_rate_figure([0.01, 0.1, 1.0], [0.9, 0.5, 0.8], [0.9, 0.6, 0.7], suggestion=0.1)
        >>> figure.axes[0].get_xlabel(), figure.axes[0].get_xscale()
        ('learning rate', 'log')
    """
    numbers = [len(learning_rates), len(losses), len(smoothed_losses)]
    if not learning_rates or len(set(numbers)) > 1:
        raise DataError(
            "A plot of tested learning rates needs at least one, and a loss and a smoothed loss for each. Received "
            f"numbers of values: {numbers}."
        )
    figure, axes = new_plot(640, 420)
    axes.plot(learning_rates, losses, color=GREY, linewidth=0.8, label="loss of a step")
    axes.plot(learning_rates, smoothed_losses, color=BLUE, linewidth=2, label="smoothed loss")
    if suggestion is not None:
        axes.axvline(suggestion, color=ORANGE, linestyle="--", label=f"suggestion: {suggestion:.2e}")
    low, high = min(*losses, *smoothed_losses), max(smoothed_losses)
    margin = _MARGIN * (high - low) or max(abs(low), 1.0) * _MARGIN
    axes.set(xlabel="learning rate", ylabel="loss", ylim=(low - margin, high + margin))
    axes.set_xscale("log" if logarithmic else "linear")
    add_legend(figure, 3)
    return figure


save_learning_rate_picture = saved(learning_rate_figure)


def scatter_figure(targets: np.ndarray, predictions: Mapping[str, np.ndarray], *, name: str) -> Figure:
    """Plots one dot per row, with the true value on the x axis and the predicted one on the y axis.

    Args:
        targets: the true values, of shape (num_rows,); of more than 2,000, every n-th is drawn.
        predictions: model -> predicted values of the same shape.
        name: name of the predicted quantity.

    Raises:
        DataError: if there are no rows, or predictions have another shape than targets.

    Example:
        >>> figure = scatter_figure(np.arange(9.0), {"network": np.arange(9.0)}, name="price")
        >>> figure.axes[0].get_title(), figure.axes[0].get_xlabel()
        ('network', 'true price')
    """
    if len(targets) == 0 or not predictions or any(values.shape != targets.shape for values in predictions.values()):
        shapes = {model: values.shape for model, values in predictions.items()}
        raise DataError(f"A plot needs a prediction for each of {targets.shape} numbers. Received: {shapes}.")
    every = -(-len(targets) // _MAX_POINTS)
    figure = new_figure(60 + 420 * len(predictions), 470)
    all_axes = figure.subplots(1, len(predictions), squeeze=False, sharex=True, sharey=True)[0]
    for axes, (model, values) in zip(all_axes, predictions.items(), strict=True):
        axes.axline((float(targets[0]), float(targets[0])), slope=1, color=GREY, linewidth=1)
        axes.plot(targets[::every], values[::every], "o", color=BLUE, markersize=5, markerfacecolor="none")
        axes.set(title=shown(model, 40), xlabel=f"true {shown(name, 40)}")
        axes.grid(color=LIGHT)
    all_axes[0].set_ylabel(f"predicted {shown(name, 40)}")
    return figure


save_scatter_picture = saved(scatter_figure)


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

    Example:
        >>> forms = [SizedForm("float32", 4000, 0.98, "float"), SizedForm("int8", 1000, 0.97, "winner")]
        >>> size_metric_figure(forms, metric="accuracy", limit=0.97).axes[0].get_ylabel()
        'accuracy'
    """
    drawn = [form for form in forms if math.isfinite(form.metric)]
    if not drawn:
        raise DataError("A plot of sizes and metrics needs at least one variant with both. Received none.")
    figure, axes = new_plot(800, 500)
    for state, (color, text) in _FORM_STATES.items():
        chosen = [form for form in drawn if form.state == state]
        if chosen:
            sizes, metrics = [form.size_bytes / 1000 for form in chosen], [form.metric for form in chosen]
            axes.plot(sizes, metrics, "o", color=color, markersize=9, label=text)
    axes.axhline(limit, color=ORANGE, linewidth=1, linestyle="--", label="limit")
    axes.set(xlabel="size of the file in kB", ylabel=shown(metric, 40))
    axes.set_xlim(0, 1.15 * max(form.size_bytes for form in drawn) / 1000)
    axes.margins(y=0.12)
    add_legend(figure, 3)
    figure.draw_without_rendering()  # moves the axes to their final position
    labels = [
        (shown(form.name, 30), (form.size_bytes / 1000, form.metric) * 2, _FORM_STATES[form.state][0]) for form in drawn
    ]
    place_labels(axes, labels, pad=6, keep_all=True)
    return figure


save_size_metric_picture = saved(size_metric_figure)


def roofline_figure(roofline: Roofline) -> Figure:
    """Plots speed over arithmetic intensity, both on logarithmic axes.

    The roof is the speed of memory times the intensity, up to the speed of matrix products in each dtype. A layer's dot
    lies at its measured speed, or on the roof if its time is unknown; its area is its share of the step's least time.
    The star is the whole step as measured.

    Example:
        >>> from tfaccel.costs.model_cost import LayerCost, StepCost
        >>> from tfaccel.measuring.roofline import Roofline
        >>> from tfaccel.planning.machine_ceilings import MachineCeilings
        >>> from tfaccel.planning.plan import Plan
        >>> roofline = Roofline(
        ...     workload="digits",
        ...     plan=Plan(strategy="none", devices=("CPU:0",), global_batch_size=8),
        ...     ceilings=MachineCeilings(
        ...         device="CPU", matrix_flops_per_second={"float32": 1e11}, bytes_per_second=1e10
        ...     ),
        ...     cost=StepCost(rows=(LayerCost(name="dense", matrix_flops=10**9, least_bytes=10**7),)),
        ...     step_seconds=0.025,
        ...     cpu_utilization=0.9,
        ... )
        >>> roofline_figure(roofline).axes[0].get_xscale()
        'log'
    """
    layers = [one for one in roofline.layers() if one.cost.intensity > 0]
    if not layers:
        raise DataError("A roofline needs a layer with matrix products or convolutions. Received none.")
    dtype = compute_dtype(roofline.plan)
    speeds, memory = roofline.matrix_flops_ceilings, roofline.bytes_ceiling
    low = min(0.1, *(one.cost.intensity / 2 for one in layers))
    high = 2 * max(max(speeds.values()) / memory, *(one.cost.intensity for one in layers))
    figure, axes = new_plot(900, 560, xscale="log", yscale="log")
    for name, speed in speeds.items():
        xs = [low, speed / memory, high]
        ys = [min(speed, x * memory) / 1e9 for x in xs]
        color, width = (BLACK, 2.0) if name == dtype else (GREY, 1.0)
        label = f"{name}: {speed / 1e9:,.0f} GFLOP/s"
        axes.plot(xs, ys, color=color, linewidth=width, linestyle="-" if name == dtype else "--", label=label)
    for bound, color in (("arithmetic", BLUE), ("memory", GREEN)):
        chosen = [one for one in layers if one.bound == bound]
        if chosen:
            x, y = [one.cost.intensity for one in chosen], [one.flops_per_second / 1e9 for one in chosen]
            sizes = [20 + 600 * one.share for one in chosen]
            axes.scatter(x, y, s=sizes, color=color, alpha=0.6, label=f"layers bound by {bound}")
    step = (
        roofline.cost.matrix_flops / roofline.cost.least_bytes,
        roofline.cost.matrix_flops / roofline.step_seconds / 1e9,
    )
    axes.plot(*step, "*", color=ORANGE, markersize=16, label=f"the step as measured, MFU {roofline.mfu:.2f}")
    axes.set(xlabel="arithmetic intensity in FLOP per byte", ylabel="GFLOP/s", title=shown(roofline.workload, 60))
    add_legend(figure, 3, below=True)
    figure.draw_without_rendering()  # moves the axes to their final position
    largest = sorted(layers, key=lambda one: -one.share)[:_NUM_LABELS]
    points = [(one, (one.cost.intensity, one.flops_per_second / 1e9)) for one in largest]
    place_labels(axes, [(shown(one.name, 24), point * 2, BLACK) for one, point in points], pad=8)
    return figure


save_roofline_picture = saved(roofline_figure)


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
