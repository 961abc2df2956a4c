"""The limits of a search: how many plans, how long, and when that is an error."""

from dataclasses import replace

import pytest

from tfaccel.errors import PlanError
from tfaccel.measuring.duel import Duel
from tfaccel.measuring.report import Candidate, MeasureOptions
from tfaccel.measuring.search_limits import SearchLimits
from tfaccel.planning.plan import Plan

PLAN = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
OTHER = replace(PLAN, dtype_policy="mixed_bfloat16")
MEASURED = [Candidate(plan=plan, axis="precision", build_seconds=1.0) for plan in (PLAN, OTHER)]
LEFT_OUT = Candidate(plan=PLAN, axis="batch size", rejection="It would need an estimated 9 GiB of 8 GiB.")


def limits_after(seconds, **options):
    limits = SearchLimits(MeasureOptions(**options))
    limits.times.note(PLAN, seconds, 0.0)
    return limits


def test_plans_are_counted_that_were_measured():
    limits = limits_after(1.0, max_candidates=2)
    assert limits.why_not(OTHER, [MEASURED[0], LEFT_OUT]) == ""
    assert limits.why_not(OTHER, MEASURED) == "2 plans were measured (max_candidates=2)."
    failed = replace(MEASURED[1], build_seconds=None, failure="it ended with SIGKILL")
    assert limits.why_not(OTHER, [MEASURED[0], failed]) == "2 plans were measured (max_candidates=2)."


def test_a_plan_that_would_not_end_in_time_is_not_begun():
    limits = limits_after(20.0, budget_seconds=10)
    assert limits.why_not(OTHER, MEASURED) == "The time was spent (budget_seconds=10)."
    with pytest.raises(PlanError, match=r"budget_seconds=10 is too small .* took 20\.0 seconds\. Use at least 80\."):
        limits.why_not(OTHER, [MEASURED[0], LEFT_OUT])


def test_a_plan_is_expected_to_take_as_long_as_others_in_its_environment():
    limits, onednn = SearchLimits(MeasureOptions(budget_seconds=30)), replace(PLAN, onednn=True)
    limits.times.note(PLAN, 25.0, 0.0, start_seconds=8.0)
    assert limits.why_not(onednn, MEASURED) == ""
    assert limits.why_not(onednn, MEASURED, is_new=True) == "The time was spent (budget_seconds=30)."
    limits.times.note(onednn, 12.0, 0.0)
    assert limits.times.expected(replace(onednn, fused_kernels=True)) == 12.0 + 1.5
    assert limits.times.expected(replace(PLAN, fused_kernels=True)) == 25.0 + 1.5
    assert limits.times.expected(replace(PLAN, accumulation_steps=2)) == 50.0 + 1.5
    limits.times.note(replace(PLAN, accumulation_steps=2), 30.0, 0.0)
    assert limits.times.expected(replace(PLAN, accumulation_steps=2, inter_op_threads=1)) == 30.0 + 1.5


def test_a_plan_that_is_built_already_takes_less_time():
    limits = SearchLimits(MeasureOptions(budget_seconds=10))
    limits.times.note(PLAN, 6.0, 3.0)
    assert limits.why_not(OTHER, MEASURED) == "The time was spent (budget_seconds=10)."
    assert limits.why_not(OTHER, MEASURED, is_built=True) == ""


def test_time_for_two_plans():
    limits = limits_after(10.0, budget_seconds=25)
    assert limits.allows_two(OTHER, duel_seconds=0.5)
    assert not limits.allows_two(OTHER, duel_seconds=1.5)
    assert not limits.allows_two(replace(PLAN, jit_compile=True), duel_seconds=0.5)
    limits.times.note(PLAN, 10.0, 0.0, start_seconds=3.0)
    assert not limits.allows_two(OTHER, duel_seconds=0.5, is_new=True)


def test_a_plan_that_hangs_ends_with_the_budget():
    assert SearchLimits(MeasureOptions(budget_seconds=10)).of_one_plan == 120  # nothing to go by yet
    limits = limits_after(1.0, budget_seconds=10)
    assert 9 < limits.of_one_plan <= 10
    limits = limits_after(1.0, budget_seconds=0.5)
    assert limits.of_one_plan == 2.0
    assert limits_after(1.0, budget_seconds=500, limit_seconds=20).of_one_plan == 20


@pytest.mark.parametrize(
    ("ratios", "is_simpler", "chosen"),
    [
        ((1.1, 1.11, 1.12), False, True),
        ((1.03, 1.05, 1.9), False, False),  # all faster, but they differ by more than the gain
        ((0.985, 1.0, 1.01), False, False),
        ((0.985, 1.0, 1.01), True, True),
        ((0.9, 0.97, 1.2), True, False),
    ],
)
def test_a_simpler_plan_wins_if_there_is_no_measurable_difference(ratios, is_simpler, chosen):
    assert Duel(ratios).chooses_challenger(is_simpler=is_simpler) == chosen
