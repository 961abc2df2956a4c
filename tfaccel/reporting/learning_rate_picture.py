"""A plot of a learning-rate range test: losses over the tested rates, and the suggested rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import BLUE, GREY, LIGHT, ORANGE, new_figure, saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    figure = new_figure(640, 420)
    axes = figure.add_subplot()
    axes.plot(learning_rates, losses, color=GREY, linewidth=0.8, label="loss of a step")
    axes.plot(learning_rates, smoothed_losses, color=BLUE, linewidth=2, label="smoothed loss")
    if suggestion is not None:
        axes.axvline(suggestion, color=ORANGE, linestyle="--", label=f"suggestion: {suggestion:.2e}")
    low, high = min(*losses, *smoothed_losses), max(smoothed_losses)
    margin = _MARGIN * (high - low) or max(abs(low), 1.0) * _MARGIN
    axes.set(xlabel="learning rate", ylabel="loss", ylim=(low - margin, high + margin))
    axes.set_xscale("log" if logarithmic else "linear")
    axes.grid(color=LIGHT)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


save_learning_rate_picture = saved(learning_rate_figure)
