"""Figures derived from measurements with interleaved windows."""

from __future__ import annotations

from collections.abc import Callable

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.measurement import Measurement, Window

# Part of a call -> its wall seconds. The whole call includes the tails of epochs, the steps do not.
PARTS: dict[str, Callable[[Window], float]] = {
    "whole call": lambda window: window.wall_seconds,
    "steps alone": lambda window: window.steps_seconds,
}

# Losses of two programs after the same batches may differ by this much, relative to a loss of at least 1.
LOSS_TOLERANCE = 1e-3


def step_time_ratio(
    name: str, *, of: Measurement, to: Measurement, part: str = "whole call", at_most: float | None = None
) -> Figure:
    """Step time of one program / step time of another, for each repetition.

    The windows of a repetition ran one after the other, so a machine that slows down slows both.

    Args:
        name: name of the figure.
        of, to: the two programs, with equally many windows.
        part: "whole call", or "steps alone": without the time before, between and after epochs.
        at_most: the upper bound of the median.
    """
    values = _ratios(of, to, PARTS[part])
    quantity = f"step time {of.name} / {to.name}, {part}"
    return Figure(
        name=name,
        quantity=quantity,
        values=values,
        cpu_values=_cpu_ratios(of, to, part),
        at_most=at_most,
        loss_difference=_loss_difference(of, to),
        loss_tolerance=_loss_tolerance(to),
    )


def throughput_ratio(
    name: str, *, of: Measurement, to: Measurement, part: str = "whole call", at_least: float | None = None
) -> Figure:
    """Steps per second of one program / steps per second of another; see `step_time_ratio`."""
    values = _ratios(to, of, PARTS[part])
    quantity = f"throughput {of.name} / {to.name}, {part}"
    return Figure(
        name=name,
        quantity=quantity,
        values=values,
        cpu_values=_cpu_ratios(to, of, part),
        at_least=at_least,
        loss_difference=_loss_difference(of, to),
        loss_tolerance=_loss_tolerance(to),
    )


def tail_share(
    name: str, *, of: Measurement, beside: Measurement | None = None, at_most: float | None = None
) -> Figure:
    """The fraction of the epochs' time after their last batches, for each repetition.

    Args:
        name: name of the figure.
        of: the program.
        beside: another program that must learn the same from the same batches.
        at_most: the upper bound of the median.
    """
    mean_epoch_seconds = sum(sum(w.epoch_seconds) / len(w.epoch_seconds) for w in of.windows) / len(of.windows)
    quantity = f"time after the last batch / epoch of {mean_epoch_seconds:.2g} s, {of.name}"
    values = tuple(window.tail_share for window in of.windows)
    if beside is None:
        return Figure(name=name, quantity=quantity, values=values, at_most=at_most)
    return Figure(
        name=name,
        quantity=quantity,
        values=values,
        at_most=at_most,
        loss_difference=_loss_difference(of, beside),
        loss_tolerance=_loss_tolerance(beside),
    )


def _ratios(over: Measurement, under: Measurement, seconds: Callable[[Window], float]) -> tuple[float, ...]:
    pairs = zip(over.windows, under.windows, strict=True)
    return tuple((seconds(a) / over.num_steps) / (seconds(b) / under.num_steps) for a, b in pairs)


def _cpu_ratios(over: Measurement, under: Measurement, part: str) -> tuple[float, ...]:
    """Ratios of CPU time, which is known only for whole calls."""
    return _ratios(over, under, lambda window: window.cpu_seconds) if part == "whole call" else ()


def _loss_difference(one: Measurement, other: Measurement) -> float:
    return abs(one.warm_up_loss - other.warm_up_loss)


def _loss_tolerance(of: Measurement) -> float:
    return LOSS_TOLERANCE * max(1.0, abs(of.warm_up_loss))
