"""Figures derived from interleaved measurements."""

from __future__ import annotations

from collections.abc import Callable

from tfaccel.benchmarks.figure import Figure
from tfaccel.measuring.measurement import Measurement, Window

# Part of a call -> its wall seconds. The tail of an epoch is in the whole call, but not in the steps.
PARTS: dict[str, Callable[[Window], float]] = {
    "whole call": lambda window: window.wall_seconds,
    "steps alone": lambda window: window.steps_seconds,
}

# Max difference of two programs' losses after the same batches, relative to max(loss, 1).
LOSS_TOLERANCE = 1e-3


def step_time_ratio(
    name: str, *, of: Measurement, to: Measurement, part: str = "whole call", at_most: float | None = None
) -> Figure:
    """Seconds of a step of one program / seconds of a step of another, repetition by repetition.

    Windows of one repetition ran one after the other, so a machine that grows slower slows both.

    Args:
        name: name of the figure.
        of, to: the two programs, with the same number of windows.
        part: "whole call", or "steps alone": without what a call does before, between and after its epochs.
        at_most: the bound of the median.
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
    """The fraction of the epochs' time spent after their last batches, per repetition.

    Args:
        name: name of the figure.
        of: the program.
        beside: another program, which must reach the same loss on the same batches.
        at_most: the bound of the median.
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
    """CPU time is only measured for whole calls."""
    return _ratios(over, under, lambda window: window.cpu_seconds) if part == "whole call" else ()


def _loss_difference(one: Measurement, other: Measurement) -> float:
    return abs(one.warm_up_loss - other.warm_up_loss)


def _loss_tolerance(of: Measurement) -> float:
    return LOSS_TOLERANCE * max(1.0, abs(of.warm_up_loss))
