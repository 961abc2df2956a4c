"""Measurements in turn, A B A B, so that a slowdown of the machine affects all: of two plans, or of programs."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tfaccel.measuring.candidate import CandidateWindow
from tfaccel.measuring.candidate_child import CandidateChild
from tfaccel.measuring.loss_check import CHECKED_STEPS
from tfaccel.measuring.measurement import Measurement, Window, relative_spread
from tfaccel.planning.plan import Plan

WINDOW_SECONDS = 0.3
MIN_GAIN = 0.02  # smaller gains are not worth a less simple plan
_MIN_ROUNDS, _MAX_ROUNDS = 3, 7
_CLEARLY_SLOWER = 0.9
_HOPELESS = 1 / 3  # of the best plan's speed, in a window beside none of its own
_HOPELESS_IN_LONG_WINDOW = 0.6
_LONG_SECONDS = 1.0
_PROBE_SECONDS = 0.05  # the speed of a shorter window is noise
_GROWTH = 16


@dataclass(frozen=True)
class Duel:
    """The challenger's speed relative to the best plan's, round by round."""

    ratios: tuple[float, ...]

    @property
    def speedup(self) -> float:
        """The median."""
        return statistics.median(self.ratios)

    @property
    def noise(self) -> float:
        """The smallest difference that counts: half the interquartile range, and at least `MIN_GAIN`."""
        return max(MIN_GAIN, relative_spread(self.ratios) / 2)

    @property
    def won(self) -> bool:
        """Whether the challenger is measurably faster."""
        return self.speedup > 1 + self.noise

    def chooses_challenger(self, *, is_simpler: bool) -> bool:
        """Whether the challenger is faster, or simpler and about as fast.

        Example:
            >>> alike = Duel((0.98, 0.99, 1.01))
            >>> alike.chooses_challenger(is_simpler=True), alike.chooses_challenger(is_simpler=False)
            (True, False)
        """
        return self.won or (is_simpler and self.speedup >= 1 - MIN_GAIN)

    def reason_of_dethroning(self, axis: str) -> str:
        """Why the plan that was the best so far is not any more.

        Example:
            >>> Duel((1.24, 1.25, 1.26)).reason_of_dethroning("XLA")
            'Slower: 0.80 times the speed of the next plan (XLA).'
            >>> Duel((0.99, 1.0, 1.01)).reason_of_dethroning("fused kernels")
            'No measurable difference: the next plan (fused kernels) is simpler.'
        """
        if self.won:
            return f"Slower: {1 / self.speedup:.2f} times the speed of the next plan ({axis})."
        return f"No measurable difference: the next plan ({axis}) is simpler."

    def reason_of_loss(self) -> str:
        """Why the challenger was not chosen.

        Example:
            >>> Duel((0.99, 1.0, 1.01)).reason_of_loss()
            'No measurable difference: 1.00 times the speed (± 0.02).'
        """
        text = "No measurable difference" if self.speedup > 1 - self.noise else "Slower"
        return f"{text}: {self.speedup:.2f} times the speed (± {self.noise:.2f})."


def duel(best: CandidateChild, challenger: CandidateChild, *, deadline: float) -> Duel:
    """Runs both in turn, so that a temporary slowdown of the machine affects both, until the difference is clear.

    A challenger that is far slower than the best plan in a first window loses at once.

    Args:
        best, challenger: running, and warmed up.
        deadline: by `time.monotonic`; after it there are no more rounds than are needed.

    Raises:
        CandidateFailed: if one of them fails.
    """
    rate = best.candidate.examples_per_second
    if rate is not None:
        probe = _run_probe(challenger)
        ratio = get_rate(probe, challenger.candidate.plan) / rate
        if ratio < (_HOPELESS if probe.seconds < _LONG_SECONDS else _HOPELESS_IN_LONG_WINDOW):
            challenger.candidate = replace(challenger.candidate, windows=(probe,))
            return Duel((ratio,))
    ratios: list[float] = []
    num_steps = [steps_of_window(one) for one in (best, challenger)]
    for turn in range(_MAX_ROUNDS):
        pair = [(best, num_steps[0]), (challenger, num_steps[1])]
        found = {id(one): one.window(count) for one, count in (pair if turn % 2 == 0 else reversed(pair))}
        rates = [get_rate(found[id(one)], one.candidate.plan) for one in (best, challenger)]
        ratios.append(rates[1] / rates[0])
        if turn >= 1 and (max(ratios) < _CLEARLY_SLOWER or min(ratios) > 1 / _CLEARLY_SLOWER):
            break
        is_clear = (min(ratios) > 1 + MIN_GAIN and Duel(tuple(ratios)).won) or max(ratios) < 1
        if turn + 1 >= _MIN_ROUNDS and is_clear:
            break
        if turn + 1 >= _MIN_ROUNDS and time.monotonic() > deadline:
            break
    return Duel(tuple(ratios))


def shortest_duel(child: CandidateChild) -> float:
    """Seconds of two rounds with a plan that is as fast, judged by the last window."""
    window = child.last_window
    return 4 * max(WINDOW_SECONDS, window.seconds / window.num_steps if window else 0.0)


def steps_of_window(child: CandidateChild) -> int:
    """The number of steps of about `WINDOW_SECONDS`, estimated by its last window or, if that was short, another."""
    if child.candidate.windows:
        return child.candidate.windows[0].num_steps
    probe = _run_probe(child)
    if probe.seconds < WINDOW_SECONDS:
        probe = child.probe(probe.num_steps)
    return max(1, round(WINDOW_SECONDS * probe.num_steps / probe.seconds))


def _run_probe(child: CandidateChild) -> CandidateWindow:
    """A window that does not count, of `_PROBE_SECONDS` or more: its last one, or further ones of more steps each."""
    probe = child.last_window or child.probe(CHECKED_STEPS)
    while probe.seconds < _PROBE_SECONDS:
        growth = max(2, min(_GROWTH, round(2 * _PROBE_SECONDS / probe.seconds)))
        probe = child.probe(growth * probe.num_steps)
    return probe


def get_rate(window: CandidateWindow, plan: Plan) -> float:
    """Examples per second."""
    return window.num_steps * plan.global_batch_size / window.seconds


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
