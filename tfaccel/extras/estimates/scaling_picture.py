"""A plot of predicted scaling: throughput and efficiency over the number of replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tfaccel.errors import DataError
from tfaccel.extras.estimates.scaling import ScalingEstimate
from tfaccel.reporting.figures import BLUE, GREY, LIGHT, ORANGE, new_figure, saved, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def scaling_figure(estimate: ScalingEstimate, *, measured: Mapping[int, Sequence[float]] | None = None) -> Figure:
    """Plots the predicted throughput beside that without communication, and the efficiency.

    Args:
        estimate: the prediction.
        measured: number of replicas -> measured examples per second, to draw beside it; None for none.

    Raises:
        DataError: if the estimate has no rows.

    Example:
        >>> from tfaccel.extras.estimates.interconnect import Interconnect
        >>> from tfaccel.extras.estimates.scaling import ScalingOptions, scaling_rows
        >>> from tfaccel.planning.step_of_one_device import StepOfOneDevice
        >>> step = StepOfOneDevice(step_seconds=1.0, batch_size=10, gradient_bytes=(100,))
        >>> link = Interconnect(name="slow", machine_latency_seconds=0.05, machine_bytes_per_second=1000.0)
        >>> options = ScalingOptions()
        >>> rows = scaling_rows(step, link, [1, 2, 4], options)
        >>> estimate = ScalingEstimate(workload="digits", options=options, step=step, interconnect=link, rows=rows)
        >>> [axes.get_ylabel() for axes in scaling_figure(estimate).axes]
        ['examples per second', 'efficiency in %']
    """
    if not estimate.rows:
        raise DataError("A plot of scaling needs at least one number of replicas. Received none.")
    numbers = [row.num_replicas for row in estimate.rows]
    first = estimate.step.batch_size / estimate.step.step_seconds
    figure = new_figure(800, 420)
    rates, shares = figure.subplots(1, 2)
    rates.plot(numbers, [first * number for number in numbers], color=GREY, linestyle="--", label="linear")
    rates.plot(
        numbers,
        [row.examples_per_second for row in estimate.rows],
        color=BLUE,
        marker="o",
        markersize=4,
        label="predicted",
    )
    for number, found in (measured or {}).items():
        rates.plot([number] * len(found), found, "x", color=ORANGE, label="measured")
    shares.plot(numbers, [100 * row.efficiency for row in estimate.rows], color=BLUE, marker="o", markersize=4)
    title = f"{estimate.workload}, {estimate.options.scaling} scaling, {estimate.interconnect.name}"
    figure.suptitle(shown(title, 80), fontsize=10)
    rates.set(ylabel="examples per second", yscale="log")
    shares.set(ylabel="efficiency in %", ylim=(0, 105))
    for axes in (rates, shares):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("replicas")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(color=LIGHT)
    handles, labels = rates.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    figure.legend(by_label.values(), by_label, loc="outside lower center", ncols=3, frameon=False)
    return figure


save_scaling_picture = saved(scaling_figure)
