"""Scatter plots of predicted over true values, one panel per model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import BLUE, GREY, LIGHT, new_figure, saved, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
