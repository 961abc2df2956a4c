"""Races of programs, with programs that only say how long their steps take."""

import pytest

from tfaccel.benchmarks.timed_race import race, ratios
from tfaccel.measuring.candidate_child import CandidateFailed
from tfaccel.training.run.performance import TimedWindow


class Program:
    """Takes so many seconds a step; fails after so many windows."""

    def __init__(self, step_seconds, *, num_windows=100):
        self.step_seconds, self.num_windows, self.windows = step_seconds, num_windows, []

    def window(self, num_steps):
        if len(self.windows) == self.num_windows:
            raise CandidateFailed("It was killed.", None, kind="crash")
        self.windows.append(num_steps)
        return TimedWindow(seconds=num_steps * self.step_seconds, num_steps=num_steps, loss=1.0)


def raced(min_speed=0.0, **programs):
    options = {"global_batch_size": 32, "num_rounds": 3, "window_seconds": 1.0, "progress": lambda text: None}
    return race(programs, min_speed=min_speed, **options)


def test_programs_take_turns():
    quick, slow = Program(0.1), Program(0.25)
    found = raced(quick=quick, slow=slow)
    assert ratios(found["quick"], found["slow"]) == pytest.approx((2.5, 2.5, 2.5))
    assert quick.windows == [2, 10, 10, 10, 10]  # the first two do not count
    assert slow.windows == [2, 4, 4, 4, 4]


def test_a_program_that_still_compiles_warms_up_again():
    class Compiling(Program):
        def window(self, num_steps):
            found = super().window(num_steps)
            return found if len(self.windows) > 1 else TimedWindow(seconds=30.0, num_steps=num_steps, loss=1.0)

    program = Compiling(0.1)
    raced(program=program)
    assert program.windows == [2, 2, 10, 10, 10, 10]


@pytest.mark.parametrize(
    ("step_seconds", "num_windows"),
    [
        ((2.0, 9.0), 1),
        ((9.0, 2.0), 1),
        ((2.0, 3.0), 5),
        ((0.01, 0.2), 5),  # the slow one's first window is too short to tell
    ],
)
def test_a_far_slower_program_runs_one_window(step_seconds, num_windows):
    own, other = (Program(seconds) for seconds in step_seconds)
    found = raced(0.3, own=own, other=other)
    assert len(own.windows) == len(other.windows) == num_windows
    assert found["own"].rate / found["other"].rate == pytest.approx(step_seconds[1] / step_seconds[0])


def test_a_program_that_fails_takes_no_further_part():
    found = raced(0.3, own=Program(0.1), other=Program(2.0, num_windows=0), third=Program(0.1, num_windows=3))
    assert len(found["own"].windows) == 3
    assert (found["other"].failure, found["other"].windows) == ("It was killed.", ())
    assert (found["third"].failure, found["third"].rate) == ("It was killed.", 0.0)
