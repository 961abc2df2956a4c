"""`Window` and `Measurement`: raw times of a program; and programs that are measured in turn, A B A B."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tfaccel.measuring.report import relative_spread
from tfaccel.records import Record


@dataclass(frozen=True, kw_only=True)
class Window:
    """One timed call that trained for one or more epochs.

    Attributes:
        wall_seconds: the whole call.
        cpu_seconds: CPU time of the process during the call, all threads, user and system.
        epoch_seconds: one entry per epoch: from its first batch to the next epoch's first batch, or the call's return.
        tail_seconds: one entry per epoch: the part after its last batch.
        loss: training loss of the last epoch.

    Raises:
        ValueError: for a time that is not positive, epochs without tails, or a tail longer than its epoch.

    Example:
        >>> window = Window(wall_seconds=3.0, cpu_seconds=4.0, epoch_seconds=(1.0, 1.5), tail_seconds=(0, 0.5), loss=0)
        >>> window.steps_seconds
        2.0
    """

    wall_seconds: float
    cpu_seconds: float
    epoch_seconds: tuple[float, ...]
    tail_seconds: tuple[float, ...]
    loss: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epoch_seconds", tuple(self.epoch_seconds))
        object.__setattr__(self, "tail_seconds", tuple(self.tail_seconds))
        if self.wall_seconds <= 0 or not self.epoch_seconds or min(self.epoch_seconds) <= 0:
            raise ValueError(f"A window needs positive times and at least one epoch. Received: {self!r}.")
        if len(self.epoch_seconds) != len(self.tail_seconds):
            raise ValueError(f"Each epoch needs its tail. Received: {self!r}.")
        if any(not 0 <= tail <= epoch for tail, epoch in zip(self.tail_seconds, self.epoch_seconds, strict=True)):
            raise ValueError(f"A tail is a part of its epoch. Received: {self!r}.")

    @property
    def steps_seconds(self) -> float:
        """The time of the steps alone: from first to last batch, summed over the epochs."""
        return sum(self.epoch_seconds) - sum(self.tail_seconds)

    @property
    def tail_share(self) -> float:
        """The fraction of the epochs' time after their last batches."""
        return sum(self.tail_seconds) / sum(self.epoch_seconds)


@dataclass(frozen=True, kw_only=True)
class Measurement(Record):
    """All timed windows of one program, without the warm-up.

    Attributes:
        name: the program, such as "tfaccel.fit(numpy)".
        num_steps: training steps of one window.
        windows: the windows, in the order in which they ran.
        warm_up_loss: final loss of the warm-up, which runs the same batches in the same order in all programs.

    Raises:
        ValueError: if there are no windows or steps.
    """

    name: str
    num_steps: int
    windows: tuple[Window, ...]
    warm_up_loss: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "windows", tuple(self.windows))
        if not self.windows or self.num_steps < 1:
            raise ValueError(f"A measurement needs at least one window of at least one step. Received: {self!r}.")

    @property
    def step_seconds(self) -> float:
        """Median time of one step, including everything that a call does between and around steps."""
        return statistics.median(window.wall_seconds for window in self.windows) / self.num_steps

    @property
    def spread(self) -> float:
        """The relative spread of the program: interquartile range of the windows' wall times / their median."""
        return relative_spread([window.wall_seconds for window in self.windows])


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
