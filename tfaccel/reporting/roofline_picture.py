"""A plot of a roofline: the machine's limits, the layers under them, and the measured step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfaccel.errors import DataError
from tfaccel.measuring.roofline import LayerLimit, Roofline
from tfaccel.planning.machine_ceilings import compute_dtype
from tfaccel.reporting.picture_files import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    new_figure,
    place_labels,
    saved,
    shown,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    figure = new_figure(900, 560)
    axes = figure.add_subplot(xscale="log", yscale="log")
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
    axes.grid(color=LIGHT)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.draw_without_rendering()  # moves the axes to their final position
    largest = sorted(layers, key=lambda one: -one.share)[:_NUM_LABELS]
    points = [(one, (one.cost.intensity, _speed(one))) for one in largest]
    place_labels(axes, [(shown(one.name, 24), point * 2, BLACK) for one, point in points], pad=8)
    return figure


def _speed(layer: LayerLimit) -> float:
    """GFLOP/s as measured, or else at the layer's limit."""
    return layer.cost.matrix_flops / (layer.seconds or layer.least_seconds) / 1e9


save_roofline_picture = saved(roofline_figure)
