"""How many steps are checked: the reference decides by its speed, and the others do the same."""

import math

import pytest

from tfaccel.measuring.duel import first_losses
from tfaccel.training.run.performance import TimedWindow


class Child:
    """In place of `CandidateChild`: steps of a given time, and their losses."""

    def __init__(self, step_seconds, losses):
        self.step_seconds, self.losses, self.windows = step_seconds, list(losses), []

    def build(self, num_steps):
        return self.warm_up(num_steps)

    def warm_up(self, num_steps):
        losses = [self.losses.pop(0) for _ in range(num_steps)]
        self.windows.append(num_steps)
        return TimedWindow(seconds=num_steps * self.step_seconds, num_steps=num_steps, loss=sum(losses) / len(losses))


FALLING = [1.0 - 0.01 * step for step in range(32)]


@pytest.mark.parametrize(
    ("step_seconds", "windows"), [(0.01, [1, 3, 4, 24]), (0.2, [1, 3, 4]), (0.9, [1, 3, 4]), (2.0, [1, 3])]
)
def test_slow_steps_are_checked_less_often(step_seconds, windows):
    reference = Child(step_seconds, FALLING)
    losses = first_losses(reference, None)
    assert reference.windows == windows
    expected = [sum(FALLING[:4]) / 4, sum(FALLING[4:8]) / 4, sum(FALLING[8:]) / 24][: len(windows) - 1]
    assert losses == pytest.approx(expected)
    same = Child(0.01, FALLING)  # as many windows as the reference, but for the third, which is not needed
    assert first_losses(same, losses) == losses[:2]
    assert same.windows == windows[:3]


def test_losses_that_depart_are_checked_longer():
    reference = first_losses(Child(0.01, FALLING), None)
    departing = Child(0.01, [2.0] * 32)
    assert first_losses(departing, reference) == (2.0, 2.0, 2.0)
    assert departing.windows == [1, 3, 4, 24]
    broken = Child(0.01, [math.nan] * 32)
    assert all(math.isnan(loss) for loss in first_losses(broken, reference))
    assert broken.windows == [1, 3, 4]
