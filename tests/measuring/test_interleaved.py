"""The order in which programs are measured."""

import pytest

from tfaccel.benchmarks.measurement import Window, measure_interleaved


class Counting:
    """A program that notes its calls in a list that several share; its n-th run takes n seconds."""

    def __init__(self, name, calls):
        self.name, self.num_steps, self.calls, self.runs = name, 4, calls, 0

    def warm_up(self):
        self.calls.append(f"warm {self.name}")
        return 0.25

    def run(self):
        self.runs += 1
        self.calls.append(self.name)
        return Window(wall_seconds=self.runs, cpu_seconds=0, epoch_seconds=(self.runs,), tail_seconds=(0,), loss=0.5)


@pytest.mark.slow
def test_programs_take_turns_and_the_first_runs_are_thrown_away():
    calls, lines = [], []
    programs = [Counting("A", calls), Counting("B", calls)]
    first, second = measure_interleaved(programs, repetitions=3, progress=lines.append)
    assert calls == ["warm A", "A", "warm B", "B", *"ABABAB"]
    assert [window.wall_seconds for window in first.windows] == [2, 3, 4]
    assert (second.name, second.num_steps, second.warm_up_loss) == ("B", 4, 0.25)
    assert lines[-1] == "B, 3 of 3"


def test_no_repetitions_are_refused():
    with pytest.raises(ValueError, match=r"repetitions must be at least 1\. Received: repetitions=0"):
        measure_interleaved([Counting("A", [])], repetitions=0, progress=print)
