"""Windows, measurements, figures and reports: what is derived, what is refused, and the way through JSON."""

import json
from dataclasses import replace

import pytest

from tfaccel.benchmarks.comparison import step_time_ratio, tail_share, throughput_ratio
from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.measurement import Measurement, Window
from tfaccel.benchmarks.report import Report
from tfaccel.measuring.report import relative_spread


def window(wall, tail=0.0, cpu=1.0):
    return Window(wall_seconds=wall, cpu_seconds=cpu, epoch_seconds=(wall,), tail_seconds=(tail,), loss=0.5)


def measurement(name, *windows, num_steps=8, loss=0.5):
    return Measurement(name=name, num_steps=num_steps, windows=windows, warm_up_loss=loss)


def test_window_parts():
    two = Window(wall_seconds=5.0, cpu_seconds=6.0, epoch_seconds=[1.0, 3.0], tail_seconds=[0.5, 0.5], loss=0.1)
    assert (two.steps_seconds, two.tail_share) == (3.0, 0.25)
    assert two.epoch_seconds == (1.0, 3.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wall_seconds": 0.0}, "needs positive times"),
        ({"epoch_seconds": (), "tail_seconds": ()}, "at least one epoch"),
        ({"tail_seconds": (0.0, 0.0)}, "Each epoch needs its tail"),
        ({"tail_seconds": (1.5,)}, "A tail is a part of its epoch"),
        ({"tail_seconds": (-0.1,)}, "A tail is a part of its epoch"),
    ],
)
def test_impossible_window_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(window(1.0), **change)


def test_measurement_statistics():
    found = measurement("a", *(window(seconds) for seconds in (1.0, 5.0, 2.0, 4.0, 3.0)))
    assert found.step_seconds == 0.375
    assert found.spread == pytest.approx(2 / 3)
    assert relative_spread([7.0]) == 0.0
    with pytest.raises(ValueError, match="at least one window"):
        measurement("a")
    with pytest.raises(ValueError, match="at least one step"):
        measurement("a", window(1.0), num_steps=0)


def test_ratios_pair_the_windows_of_one_repetition():
    fast = measurement("fast", window(1.0, cpu=2.0), window(4.0, cpu=2.0))
    slow = measurement("slow", window(2.0, cpu=8.0), window(8.0, cpu=8.0))
    time = step_time_ratio("f", of=fast, to=slow, at_most=1.05)
    assert (time.values, time.cpu_values, time.met) == ((0.5, 0.5), (0.25, 0.25), True)
    throughput = throughput_ratio("f", of=fast, to=slow, at_least=2.5)
    assert (throughput.values, throughput.met) == ((2.0, 2.0), False)
    assert throughput.quantity == "throughput fast / slow, whole call"


def test_ratios_are_of_steps():
    short, long = measurement("short", window(1.0)), measurement("long", window(4.0), num_steps=32)
    assert step_time_ratio("f", of=long, to=short).values == (1.0,)
    assert throughput_ratio("f", of=long, to=short).values == (1.0,)


def test_steps_alone_leave_the_tails_out():
    prompt, late = measurement("prompt", window(1.0)), measurement("late", window(2.0, tail=1.0))
    figure = throughput_ratio("f", of=prompt, to=late, part="steps alone", at_least=1.0)
    assert (figure.values, figure.cpu_values, figure.met) == ((1.0,), (), True)
    assert tail_share("f", of=late, at_most=0.01).values == (0.5,)
    assert tail_share("f", of=late, at_most=0.01).met is False
    assert "epoch of 2 s" in tail_share("f", of=late).quantity
    stranger = measurement("stranger", window(1.0), loss=0.6)
    assert tail_share("f", of=prompt, beside=late, at_most=0.01).met is True
    assert tail_share("f", of=prompt, beside=stranger, at_most=0.01).met is False


def test_programs_that_learned_different_things_miss_the_bound():
    one, other = measurement("one", window(1.0), loss=0.5), measurement("other", window(1.0), loss=0.502)
    figure = step_time_ratio("f", of=one, to=other, at_most=2.0)
    assert figure.loss_difference == pytest.approx(0.002)
    assert (figure.losses_agree, figure.met) == (False, False)
    assert step_time_ratio("f", of=one, to=measurement("m", window(1.0), loss=0.5009), at_most=2.0).met
    large, larger = measurement("one", window(1.0), loss=50.0), measurement("other", window(1.0), loss=50.04)
    assert step_time_ratio("f", of=large, to=larger).losses_agree
    assert step_time_ratio("f", of=measurement("n", window(1.0), loss=float("nan")), to=one, at_most=2.0).met is False


def test_figure_statistics_and_bounds():
    figure = Figure(name="f", quantity="q", values=[3.0, 1.0, 2.5], at_least=2.5)
    assert (figure.minimum, figure.median, figure.maximum, figure.cpu_median, figure.met) == (1.0, 2.5, 3.0, None, True)
    assert replace(figure, at_least=2.6).met is False
    assert replace(figure, at_least=None, at_most=2.5).met is True
    assert replace(figure, at_least=None, at_most=2.4).met is False
    assert replace(figure, at_least=None).met is None
    with pytest.raises(ValueError, match="at least one value"):
        replace(figure, values=())
    with pytest.raises(ValueError, match="one bound, at_most or at_least"):
        replace(figure, at_most=3.0)


def report():
    steady = measurement("steady", *[window(1.0)] * 5)
    noisy = measurement("noisy", *(window(seconds) for seconds in (1.0, 2.0, 3.0, 4.0, 5.0)))
    figures = (throughput_ratio("speed", of=steady, to=noisy, at_least=2.5), tail_share("end", of=steady))
    return Report(
        suite="engine", machine={"num_usable_cores": 2}, measurements={"speed": (steady, noisy)}, figures=figures
    )


def test_report_goes_through_json():
    first = report()
    data = json.loads(json.dumps(first.to_json()))
    assert Report.from_json(data) == first
    assert data["met"] is True
    assert data["figures"][0]["median"] == 3.0
    assert data["measurements"]["speed"][1]["windows"][4]["wall_seconds"] == 5.0


def test_report_says_what_is_missed_and_what_is_doubtful():
    first = report()
    assert first.warnings == ["speed: noisy varies by 67%: is the machine busy?"]
    missed = replace(first.figures[0], at_least=10.0)
    assert replace(first, figures=(missed,)).met is False
    unlike = replace(first.figures[0], loss_difference=0.5)
    found = replace(first, figures=(unlike,))
    assert found.met is False
    assert "the losses after the same batches differ by 0.5" in found.warnings[1]
