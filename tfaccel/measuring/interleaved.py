"""Programs measured by turns, A B A B, so that what slows the machine for a while slows all of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Protocol

from tfaccel.measuring.measurement import Measurement, Window


class Program(Protocol):
    """Something that trains, and can do so again and again from the same start."""

    name: str
    num_steps: int

    def warm_up(self) -> float:
        """Traces and compiles, on the batches and in the order common to all programs; returns the final loss."""

    def run(self) -> Window:
        """Trains once from the start and times it."""


def measure_interleaved(
    programs: Sequence[Program], *, repetitions: int, progress: Callable[[str], None], num_discarded: int = 1
) -> tuple[Measurement, ...]:
    """Measures programs by turns; the warm-up and more runs of each are thrown away.

    Args:
        programs: what to measure, in the order of their turns.
        repetitions: how many windows of each are kept.
        num_discarded: how many runs of each are thrown away after the warm-up.
        progress: called with a line before each run.

    Raises:
        ValueError: for no repetitions.

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
