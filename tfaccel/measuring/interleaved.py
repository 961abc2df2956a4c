"""Interleaved measurement of programs, A B A B, so that a temporary slowdown of the machine affects all of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Protocol

from tfaccel.measuring.measurement import Measurement, Window


class Program(Protocol):
    """A program that trains, and can be rerun from the same initial state."""

    name: str
    num_steps: int

    def warm_up(self) -> float:
        """Traces and compiles, on the same batches in the same order in all programs; returns the final loss."""

    def run(self) -> Window:
        """Trains once from the initial state, timed."""


def measure_interleaved(
    programs: Sequence[Program], *, repetitions: int, progress: Callable[[str], None], num_discarded: int = 1
) -> tuple[Measurement, ...]:
    """Measures programs in turn; the warm-up and the first runs of each are discarded.

    Args:
        programs: the programs, in the order of their turns.
        repetitions: number of windows of each that are kept.
        num_discarded: number of runs of each that are discarded after the warm-up.
        progress: called with a line before each run.

    Raises:
        ValueError: if `repetitions` is less than 1.

    Example:
        >>> class Sleeper:
        ...     name, num_steps = "sleeper", 1
        ...     def warm_up(self):
        ...         return 0.5
        ...     def run(self):
        ...         return Window(wall_seconds=1, cpu_seconds=0, epoch_seconds=(1,), tail_seconds=(0,), loss=0.5)
        >>> [measurement] = measure_interleaved([Sleeper()], repetitions=3, progress=lambda text: None)
        >>> len(measurement.windows)
        3
    """
    if repetitions < 1:
        raise ValueError(f"repetitions must be at least 1. Received: repetitions={repetitions}.")
    losses = []
    for program in programs:
        progress(f"{program.name}, warm-up")
        losses.append(program.warm_up())
        for _ in range(num_discarded):
            program.run()
    windows: list[list[Window]] = [[] for _ in programs]
    for repetition in range(repetitions):
        for program, found in zip(programs, windows, strict=True):
            progress(f"{program.name}, {repetition + 1} of {repetitions}")
            gc.collect()
            found.append(program.run())
    return tuple(
        Measurement(name=program.name, num_steps=program.num_steps, windows=tuple(found), warm_up_loss=loss)
        for program, found, loss in zip(programs, windows, losses, strict=True)
    )
