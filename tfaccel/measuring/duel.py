"""A plan beside the best one so far: whether it computes the same, and which is faster.

Both run in turn, A B A B, so that a slowdown of the machine affects both.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, replace

from tfaccel.measuring.candidate_child import CandidateChild
from tfaccel.measuring.report import relative_spread
from tfaccel.planning.plan import Plan
from tfaccel.training.run.performance import TimedWindow

WINDOW_SECONDS = 0.3
MIN_GAIN = 0.02  # smaller gains are not worth a less simple plan
_MIN_ROUNDS, _MAX_ROUNDS = 3, 5
_CLEARLY_SLOWER, _FAR_SLOWER = 0.9, 0.7  # in two rounds; in one
_HOPELESS = 1 / 3  # of the best plan's speed, in a window beside none of its own
_HOPELESS_IN_LONG_WINDOW = 0.6
_LONG_SECONDS = 1.0
_PROBE_SECONDS = 0.05  # the speed of a shorter window is noise
_GROWTH = 16
LOSS_TOLERANCE = 0.05  # relative to the reference's loss
CHECKED_STEPS = 4  # in each of the two windows whose losses are compared with the reference's
MORE_CHECKED_STEPS = 24  # after them, where dropout or a high learning rate makes the losses of so few steps differ
_STEPS = (CHECKED_STEPS, CHECKED_STEPS, MORE_CHECKED_STEPS)
_MAX_SECOND_SECONDS, _MAX_THIRD_SECONDS = 4.0, 2.0  # windows that would take longer are left out


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
        if ratios[0] < _FAR_SLOWER:
            break
        if turn >= 1 and (max(ratios) < _CLEARLY_SLOWER or min(ratios) > 1 / _CLEARLY_SLOWER):
            break
        num_without_gain = sum(ratio <= 1 + MIN_GAIN for ratio in ratios)
        cannot_win = num_without_gain > _MAX_ROUNDS / 2  # the median of all rounds stays below
        is_clear = cannot_win or (min(ratios) > 1 + MIN_GAIN and Duel(tuple(ratios)).won)
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


def _run_probe(child: CandidateChild) -> TimedWindow:
    """A window that does not count, of `_PROBE_SECONDS` or more: its last one, or further ones of more steps each."""
    probe = child.last_window or child.probe(CHECKED_STEPS)
    while probe.seconds < _PROBE_SECONDS:
        growth = max(2, min(_GROWTH, round(2 * _PROBE_SECONDS / probe.seconds)))
        probe = child.probe(growth * probe.num_steps)
    return probe


def get_rate(window: TimedWindow, plan: Plan) -> float:
    """Examples per second."""
    return window.num_steps * plan.global_batch_size / window.seconds


def first_losses(child: CandidateChild, reference: tuple[float, ...] | None) -> tuple[float, ...]:
    """Builds a candidate and trains its first steps; returns the mean loss of each window.

    There are two windows, and a longer third one if the first two depart from the reference; and if the child is the
    reference itself, unless that would take seconds. Where steps take a second or more, there is one window.

    Args:
        child: a new candidate.
        reference: the losses of the reference; None if the child is the reference.

    Raises:
        CandidateFailed: if it fails.
    """
    first, others = child.build(1), child.warm_up(CHECKED_STEPS - 1)
    losses = [(first.loss + (CHECKED_STEPS - 1) * others.loss) / CHECKED_STEPS]
    if reference is None:
        step_seconds = others.seconds / (CHECKED_STEPS - 1)
        has_second = CHECKED_STEPS * step_seconds < _MAX_SECOND_SECONDS
        may_have_third = MORE_CHECKED_STEPS * step_seconds < _MAX_THIRD_SECONDS
    else:
        has_second, may_have_third = len(reference) > 1, len(reference) > 2
    if has_second:
        losses.append(child.warm_up(CHECKED_STEPS).loss)
    if may_have_third and (
        reference is None or (all(map(math.isfinite, losses)) and departure(tuple(losses), reference))
    ):
        losses.append(child.warm_up(MORE_CHECKED_STEPS).loss)
    return tuple(losses)


def departure(losses: tuple[float, ...], reference: tuple[float, ...]) -> str:
    """Why losses are not those of the reference; empty if they are.

    Losses of three windows are compared by their mean over all steps.

    Example:
        >>> departure((1.0, 0.91), (1.0, 0.9)), departure((1.0, 1.2), (1.0, 0.9))
        ('', 'Its loss is 1.2 where that of float32 is 0.9: more than 5 % apart.')
    """
    if len(losses) == len(reference) == len(_STEPS):
        losses, reference = (_mean(losses),), (_mean(reference),)
    for loss, wanted in zip(losses, reference, strict=False):
        if not math.isfinite(loss):
            return "Its loss is not finite."
        if abs(loss - wanted) > LOSS_TOLERANCE * max(abs(wanted), 1e-3):
            return f"Its loss is {loss:.4g} where that of float32 is {wanted:.4g}: more than 5 % apart."
    return ""


def what_is_wrong(
    child: CandidateChild,
    losses: tuple[float, ...],
    *,
    reference: Plan,
    reference_losses: tuple[float, ...],
) -> str:
    """Why a plan does not compute what the reference does; empty if it does.

    Args:
        child: runs the plan.
        losses: those of `first_losses`.
        reference, reference_losses: the reference's plan and losses.
    """
    plan = child.candidate.plan
    if plan.global_batch_size != reference.global_batch_size:  # other examples, so only whether they are finite
        return departure(losses, losses)
    if not all(map(math.isfinite, reference_losses)):
        return "The loss of float32, with which it should be compared, is not finite."
    depends = child.built["depends_on_micro_batches"]
    if depends and plan.accumulation_steps != reference.accumulation_steps:
        return f"Micro-batches would change the results: {depends}."
    return departure(losses, reference_losses)


def _mean(losses: tuple[float, ...]) -> float:
    return sum(loss * steps for loss, steps in zip(losses, _STEPS, strict=True)) / sum(_STEPS)
