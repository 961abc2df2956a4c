"""What earlier searches on a machine teach a new one."""

import json
from dataclasses import replace

import pytest

from tfaccel.hardware.hardware import Hardware
from tfaccel.measuring.lessons import Lessons
from tfaccel.measuring.report import FIRST_PLAN, Candidate, MeasureOptions, Report
from tfaccel.measuring.search_limits import SearchLimits
from tfaccel.planning.cache import cache_file
from tfaccel.planning.moves import Move
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_cache import keep_plan
from tfaccel.planning.workload import Workload

PLAIN = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)
FUSED, COMPILED = replace(PLAIN, fused_kernels=True), replace(PLAIN, jit_compile=True)
MOVES = [
    Move("precision", (("dtype_policy", "mixed_bfloat16"),)),
    Move("oneDNN", (("onednn", True),)),
    Move("kernels", (("fused_kernels", True),)),
    Move("XLA", (("jit_compile", True),)),
]


def axes(moves):
    return [move.axis for move in moves]


def measured(axis, speedup, **changes):
    return Candidate(plan=replace(PLAIN, **changes), axis=axis, speedup=speedup)


def test_without_lessons_the_rules_order_stays():
    lessons = Lessons([Candidate(plan=PLAIN, axis=FIRST_PLAN)], 0)
    assert lessons.ordered(MOVES) == MOVES and not any(map(lessons.pays, MOVES))


def test_what_gained_most_comes_first_and_what_lost_last():
    lessons = Lessons([measured("XLA", 1.6, jit_compile=True), measured("oneDNN", 0.7, onednn=True)], 1)
    assert axes(lessons.ordered(MOVES)) == ["XLA", "precision", "kernels", "oneDNN"]
    assert [lessons.pays(move) for move in MOVES] == [False, False, False, True]


def test_what_is_doubtful_for_this_model_comes_last_whatever_it_gained_for_others():
    doubtful = [replace(MOVES[0], is_doubtful=True), *MOVES[1:]]
    lessons = Lessons([measured("precision", 1.6, dtype_policy="mixed_bfloat16")], 1)
    assert axes(lessons.ordered(MOVES))[0] == "precision" and axes(lessons.ordered(doubtful))[-1] == "precision"


def test_a_move_that_lost_a_little_once_is_tried_before_those_that_seldom_pay():
    lessons = Lessons([measured("precision", 0.95, dtype_policy="mixed_bfloat16")], 1)
    assert axes(lessons.ordered(MOVES)) == ["oneDNN", "precision", "kernels", "XLA"]


def test_other_values_of_the_same_fields_are_other_moves():
    off = Move("oneDNN", (("onednn", False),))
    lessons = Lessons([measured("oneDNN", 1.5, onednn=True)], 1)
    assert (lessons.pays(MOVES[1]), lessons.pays(off)) == (True, False)


def test_two_moves_at_once_share_their_gain():
    both = measured("oneDNN and kernels", 1.44, onednn=True, fused_kernels=True)
    lessons = Lessons([both], 1)
    assert [lessons.pays(move) for move in MOVES] == [False, True, True, False]
    assert not Lessons([replace(both, speedup=1.2)], 1).pays(MOVES[1])  # 1.1 each


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path))
    return tmp_path


def keep(name, hardware, speedup):
    workload = Workload(name, object, dict, lambda *args, **kwargs: None, global_batch_size=8)
    candidates = (Candidate(plan=PLAIN, axis=FIRST_PLAN), measured("kernels", speedup, fused_kernels=True))
    report = Report(workload=name, candidates=candidates, chosen=0, seconds=1.0, hardware={}, versions={})
    return keep_plan(hardware, workload, {}, PLAIN, speedup=1.0, report=report.to_json())


def test_kept_plans_of_this_machine_and_these_versions_teach(cache):
    here, other = Hardware(num_usable_cores=2), Hardware(num_usable_cores=64)
    assert Lessons.of(here).num_searches == 0
    keep("digits", here, 1.5)
    keep("text", other, 0.5)
    stale = keep("flowers", here, 0.5)
    entry = json.loads(stale.read_text())
    entry["key"]["versions"]["tensorflow"] = "2.0"
    stale.write_text(json.dumps(entry))
    (cache_file("plans") / "damaged.json").write_text("{")
    (cache_file("plans") / "list.json").write_text("[]")
    lessons = Lessons.of(here)
    assert (lessons.num_searches, lessons.pays(MOVES[2])) == (1, True)


def test_a_search_that_was_taught_takes_less_time():
    options = MeasureOptions()
    assert SearchLimits(options).budget_seconds == 30
    assert SearchLimits(options, is_taught=True).budget_seconds == 20
    assert SearchLimits(MeasureOptions(budget_seconds=7), is_taught=True).budget_seconds == 7


def test_a_slow_plan_extends_a_budget_that_is_not_given():
    limits = SearchLimits(MeasureOptions())
    limits.times.note(PLAIN, 30.0, 10.0, start_seconds=5.0)
    assert limits.budget_seconds == pytest.approx(86.5)
    limits._began -= 60  # a second plan is always tried
    assert limits.why_not(FUSED, [Candidate(plan=PLAIN, axis=FIRST_PLAN, build_seconds=1.0)]) == ""
