"""Which of two running plans is faster, measured window by window in turn; and whether a plan computes the same."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, replace

from tfaccel.measuring.candidate import CandidateWindow
from tfaccel.measuring.candidate_child import CandidateChild
from tfaccel.measuring.measurement import relative_spread
from tfaccel.planning.plan import Plan

LOSS_TOLERANCE = 0.05  # relative to the reference's loss
CHECKED_STEPS = 4  # in each of the two windows whose losses are compared with the reference's
MORE_CHECKED_STEPS = 24  # after them, where dropout or a high learning rate makes the losses of so few steps differ
_STEPS = (CHECKED_STEPS, CHECKED_STEPS, MORE_CHECKED_STEPS)
_MAX_CHECK_SECONDS = 2.0
WINDOW_SECONDS = 0.3
MIN_GAIN = 0.02  # smaller gains are not worth a less simple plan
_MIN_ROUNDS, _MAX_ROUNDS = 3, 7
_CLEARLY_SLOWER = 0.9
_HOPELESS = 1 / 3


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

    A challenger whose warm-up was far slower than the best plan loses at once.

    Args:
        best, challenger: running, and warmed up.
        deadline: by `time.monotonic`; after it there are no more rounds than are needed.

    Raises:
        CandidateFailed: if one of them fails.
    """
    probe, rate = challenger.last_window, best.candidate.examples_per_second
    if probe is not None and rate is not None and rate_of(probe, challenger.candidate.plan) < _HOPELESS * rate:
        challenger.candidate = replace(challenger.candidate, windows=(probe,))
        return Duel((rate_of(probe, challenger.candidate.plan) / rate,))
    ratios: list[float] = []
    num_steps = [steps_of_window(one) for one in (best, challenger)]
    for turn in range(_MAX_ROUNDS):
        pair = [(best, num_steps[0]), (challenger, num_steps[1])]
        found = {id(one): one.window(count) for one, count in (pair if turn % 2 == 0 else reversed(pair))}
        rates = [rate_of(found[id(one)], one.candidate.plan) for one in (best, challenger)]
        ratios.append(rates[1] / rates[0])
        if turn >= 1 and max(ratios) < _CLEARLY_SLOWER:
            break
        if turn + 1 >= _MIN_ROUNDS and (min(ratios) > 1 + MIN_GAIN or max(ratios) < 1):
            break
        if turn + 1 >= _MIN_ROUNDS and time.monotonic() > deadline:
            break
    return Duel(tuple(ratios))


def steps_of_window(child: CandidateChild) -> int:
    """The number of steps of about `WINDOW_SECONDS`, estimated by an untimed window."""
    if child.candidate.windows:
        return child.candidate.windows[0].num_steps
    probe = child.warm_up(CHECKED_STEPS)
    return max(2, round(WINDOW_SECONDS * probe.num_steps / probe.seconds))


def rate_of(window: CandidateWindow, plan: Plan) -> float:
    """Examples per second."""
    return window.num_steps * plan.global_batch_size / window.seconds


def first_losses(child: CandidateChild, reference: tuple[float, ...] | None) -> tuple[float, ...]:
    """Builds a candidate and trains its first steps; returns the mean loss of each window.

    There are two windows, and a longer third one if the first two depart from the reference; and if the child is the
    reference itself, unless that would take seconds.

    Args:
        child: a new candidate.
        reference: the losses of the reference; None if the child is the reference.

    Raises:
        CandidateFailed: if it fails.
    """
    first, second = child.build(CHECKED_STEPS), child.warm_up(CHECKED_STEPS)
    losses = (first.loss, second.loss)
    if reference is None:
        more = second.seconds / CHECKED_STEPS * MORE_CHECKED_STEPS < _MAX_CHECK_SECONDS
    else:
        more = len(reference) > len(losses) and all(map(math.isfinite, losses)) and bool(departure(losses, reference))
    return (*losses, child.warm_up(MORE_CHECKED_STEPS).loss) if more else losses


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
    if plan.accumulation_steps != reference.accumulation_steps and child.batch_norm_layers:
        names = ", ".join(child.batch_norm_layers)
        return f"Batch normalization ({names:.100}) would take its statistics over other micro-batches."
    return departure(losses, reference_losses)


def _mean(losses: tuple[float, ...]) -> float:
    return sum(loss * steps for loss, steps in zip(losses, _STEPS, strict=True)) / sum(_STEPS)
