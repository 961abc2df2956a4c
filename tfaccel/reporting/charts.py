"""Charts of scores, losses, sizes and speeds, one function each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    from pathlib import Path

    from matplotlib.figure import Figure

    from tfaccel.measuring.roofline import LayerLimit, Roofline


_CURVE_COLORS = (BLUE, ORANGE, GREY)


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


_MARGIN = 0.1  # of the range of losses; those far above the smoothed ones are not shown


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

    Raises:
        DataError: if there are no rates, or the numbers of values differ.

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


_MAX_POINTS = 2000


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


MAX_CLASSES = 20  # rows and columns of the plot; further classes are merged into the last one
_MAX_CLASS_NAME = 18  # characters
_MAX_CLASSES_WITH_COUNTS = 12


def confusion_figure(matrices: Mapping[str, np.ndarray], *, class_names: tuple[str, ...]) -> Figure:
    """Plots one confusion matrix per model.

    Rows are true classes, columns predicted ones; the larger a cell's fraction of its row, the darker it is.
    With more than 20 classes, the last ones are merged into "others".

    Args:
        matrices: model -> counts, of shape (num_classes, num_classes).
        class_names: the name of each class.

    Raises:
        DataError: if there is no matrix, or one has a different shape.

    Example:
        >>> figure = confusion_figure({"network": np.array([[8, 1], [0, 9]])}, class_names=("cat", "dog"))
        >>> figure.axes[0].get_title()
        'network: accuracy 94.4 %'
    """
    num_classes = len(class_names)
    wrong = [name for name, matrix in matrices.items() if matrix.shape != (num_classes, num_classes)]
    if not matrices or wrong:
        raise DataError(
            f"Each model needs counts of shape ({num_classes}, {num_classes}), and there must be a model. "
            f"Received: {', '.join(f'{name} {matrices[name].shape}' for name in wrong) or 'none'}."
        )
    is_rotated = min(num_classes, MAX_CLASSES) > 3
    figure = new_figure(120 + 440 * len(matrices), 500 + 100 * is_rotated)
    all_axes = figure.subplots(1, len(matrices), squeeze=False, sharey=True)[0]
    for axes, (model, matrix) in zip(all_axes, matrices.items(), strict=True):
        counts, names = joined(matrix, class_names)
        fractions = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
        axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        texts = [shown(name, _MAX_CLASS_NAME) for name in names]
        axes.set_xticks(range(len(names)), texts, rotation=90 * is_rotated, fontsize=SMALL)
        axes.set_yticks(range(len(names)), texts, fontsize=SMALL)
        accuracy = 100 * np.trace(matrix) / max(1, matrix.sum())
        axes.set(title=f"{shown(model, 30)}: accuracy {accuracy:.1f} %", xlabel="predicted class")
        if len(names) <= _MAX_CLASSES_WITH_COUNTS:
            for row, column in np.ndindex(counts.shape):
                color = "white" if fractions[row, column] > 0.5 else BLACK
                axes.text(
                    column, row, f"{counts[row, column]:.0f}", ha="center", va="center", fontsize=SMALL, color=color
                )
    all_axes[0].set_ylabel("true class")
    return figure


save_confusion_picture = saved(confusion_figure)


def save_confusions(
    path: Path, labels: np.ndarray, probabilities: Mapping[str, np.ndarray], *, class_names: tuple[str, ...]
) -> None:
    """Saves the plot of `confusion_figure` for predicted probabilities.

    Args:
        path: the PNG file to write.
        labels: the true class index of each example.
        probabilities: model -> class probabilities, of shape (num_examples, num_classes).
        class_names: the name of each class.
    """
    from sklearn.metrics import confusion_matrix

    numbers = range(len(class_names))
    matrices = {
        name: confusion_matrix(labels, values.argmax(axis=1), labels=numbers) for name, values in probabilities.items()
    }
    save_confusion_picture(path, matrices, class_names=class_names)


def joined(matrix: np.ndarray, class_names: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns counts and names, with the last classes merged if there are more than `MAX_CLASSES`.

    Example:
        >>> counts, names = joined(np.ones((30, 30), int), tuple(map(str, range(30))))
        >>> counts.shape, names[-1], int(counts[-1, -1])
        ((20, 20), 'others', 121)
    """
    if len(class_names) <= MAX_CLASSES:
        return matrix, class_names
    kept = np.arange(MAX_CLASSES)
    counts = np.add.reduceat(np.add.reduceat(matrix, kept, axis=0), kept, axis=1)
    return counts, (*class_names[: MAX_CLASSES - 1], "others")


_FORM_STATES = {
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


_NUM_LABELS = 8


def roofline_figure(roofline: Roofline) -> Figure:
    """Plots speed over arithmetic intensity, both on logarithmic axes.

    The roof is the speed of memory times the intensity, up to the speed of matrix products in each dtype. A layer's dot
    lies at its measured speed, or on the roof if its time is unknown; its area is its share of the step's least time.
    The star is the whole step as measured.

    Args:
        roofline: what was measured.

    Raises:
        DataError: if no layer has matrix products, so that there is nothing to plot.

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
    ridges = [roofline.ceilings.ridge(name) for name in roofline.ceilings.matrix_flops_per_second]
    low = min(0.1, *(one.cost.intensity / 2 for one in layers))
    high = max(2 * max(ridges), *(one.cost.intensity * 2 for one in layers))
    figure, axes = new_plot(900, 560, xscale="log", yscale="log")
    count = roofline.bytes_ceiling / roofline.ceilings.bytes_per_second  # devices
    for name, speed in roofline.ceilings.matrix_flops_per_second.items():
        ridge = speed / roofline.ceilings.bytes_per_second
        xs = [low, ridge, high]
        ys = [count * min(speed, x * roofline.ceilings.bytes_per_second) / 1e9 for x in xs]
        color, width = (BLACK, 2.0) if name == dtype else (GREY, 1.0)
        label = f"{name}: {count * speed / 1e9:,.0f} GFLOP/s"
        axes.plot(xs, ys, color=color, linewidth=width, linestyle="-" if name == dtype else "--", label=label)
    for bound, color in (("arithmetic", BLUE), ("memory", GREEN)):
        chosen = [one for one in layers if one.bound == bound]
        speeds = [_speed(one) for one in chosen]
        sizes = [20 + 600 * one.share for one in chosen]
        if chosen:
            label = f"layers bound by {bound}"
            axes.scatter([one.cost.intensity for one in chosen], speeds, s=sizes, color=color, alpha=0.6, label=label)
    step = (
        roofline.cost.matrix_flops / roofline.cost.least_bytes,
        roofline.cost.matrix_flops / roofline.step_seconds / 1e9,
    )
    axes.plot(*step, "*", color=ORANGE, markersize=16, label=f"the step as measured, MFU {roofline.mfu:.2f}")
    axes.set(xlabel="arithmetic intensity in FLOP per byte", ylabel="GFLOP/s", title=shown(roofline.workload, 60))
    add_legend(figure, 3, below=True)
    figure.draw_without_rendering()  # moves the axes to their final position
    largest = sorted(layers, key=lambda one: -one.share)[:_NUM_LABELS]
    points = [(one, (one.cost.intensity, _speed(one))) for one in largest]
    place_labels(axes, [(shown(one.name, 24), point * 2, BLACK) for one, point in points], pad=8)
    return figure


def _speed(layer: LayerLimit) -> float:
    """GFLOP/s as measured, or else at the layer's limit."""
    return layer.cost.matrix_flops / (layer.seconds or layer.least_seconds) / 1e9


save_roofline_picture = saved(roofline_figure)
