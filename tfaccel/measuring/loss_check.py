"""Whether a plan computes what the reference computes: its losses over the same first steps."""

from __future__ import annotations

import math

from tfaccel.measuring.candidate_child import CandidateChild
from tfaccel.planning.plan import Plan

LOSS_TOLERANCE = 0.05  # relative to the reference's loss
CHECKED_STEPS = 4  # in each of the two windows whose losses are compared with the reference's
MORE_CHECKED_STEPS = 24  # after them, where dropout or a high learning rate makes the losses of so few steps differ
_STEPS = (CHECKED_STEPS, CHECKED_STEPS, MORE_CHECKED_STEPS)
_MAX_SECOND_SECONDS, _MAX_THIRD_SECONDS = 4.0, 2.0  # windows that would take longer are left out


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
    if plan.accumulation_steps != reference.accumulation_steps and child.depends_on_micro_batches:
        return f"Micro-batches would change the results: {child.depends_on_micro_batches}."
    return departure(losses, reference_losses)


def _mean(losses: tuple[float, ...]) -> float:
    return sum(loss * steps for loss, steps in zip(losses, _STEPS, strict=True)) / sum(_STEPS)
