"""Gains of moves: undone moves give theirs to those that undid them."""

from dataclasses import replace

import pytest

from tfaccel.measuring.plan_search import Gains
from tfaccel.measuring.report import NO_MOVE_LEFT, Candidate, MeasureOptions, Report
from tfaccel.planning.moves import Move
from tfaccel.planning.plan import Plan

PLAIN = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)
FUSED = replace(PLAIN, fused_kernels=True)
COMPILED = replace(PLAIN, jit_compile=True)
THREADED = replace(COMPILED, inter_op_threads=1)


def test_a_move_that_undoes_another_takes_its_gain_over():
    gains = Gains()
    gains.won("kernels", 1.5, before=PLAIN, after=FUSED)
    gains.won("XLA", 1.2, before=FUSED, after=COMPILED)
    gains.won("threads", 1.1, before=COMPILED, after=THREADED)
    assert gains.by_axis(THREADED) == pytest.approx({"XLA": 1.8, "threads": 1.1})
    reasons = gains.reasons(THREADED)
    assert reasons["jit_compile"] == "Measured on this machine: XLA, 1.80 times the speed."
    assert reasons["inter_op_threads"] == "Measured on this machine: threads, 1.10 times the speed."


def test_moves_that_undo_a_gain_are_known():
    gains = Gains()
    gains.won("first plan", 1.3, before=replace(PLAIN, dtype_policy="mixed_bfloat16"), after=PLAIN)
    gains.won("kernels", 1.5, before=PLAIN, after=FUSED)
    compiled = Move("XLA", (("jit_compile", True), ("fused_kernels", False)))
    others = Move("kernels", (("fused_kernels", True),)), Move("precision", (("dtype_policy", "mixed_bfloat16"),))
    assert gains.undone_by(compiled) and not any(map(gains.undone_by, others))


def test_two_moves_at_once_have_one_gain():
    both = replace(FUSED, onednn=True)
    gains = Gains()
    gains.won("oneDNN and kernels", 1.6, before=PLAIN, after=both)
    assert gains.by_axis(both) == {"oneDNN and kernels": 1.6}
    reason = "Measured on this machine: oneDNN and kernels, 1.60 times the speed."
    assert gains.reasons(both) == {"onednn": reason, "fused_kernels": reason}
    continued = Gains()
    continued.take_over(gains.by_axis(both), both)
    assert continued.reasons(both) == gains.reasons(both)


def test_an_earlier_search_is_taken_over_once():
    gains = Gains()
    gains.won("first plan", 1.3, before=replace(PLAIN, dtype_policy="mixed_bfloat16"), after=PLAIN)
    gains.won("XLA", 1.4, before=PLAIN, after=COMPILED)
    gains.take_over({"first plan": 1.3, "XLA": 1.5}, COMPILED)
    assert gains.by_axis(COMPILED) == {"first plan": 1.3, "XLA": 1.5}


def report(**changes):
    candidate = Candidate(plan=PLAIN, axis="first plan")
    given = {"workload": "w", "candidates": (candidate,), "chosen": 0, "seconds": 1.0, "hardware": {}, "versions": {}}
    return Report(**{**given, "budget_seconds": 60.0, "max_candidates": 4, **changes})


@pytest.mark.parametrize(
    ("changes", "left_out", "covers"),
    [
        ({}, (), True),
        ({"complete": False}, (), False),
        ({"max_candidates": 3}, (), False),
        ({"budget_seconds": 59.0}, (), False),
        ({"max_candidates": 3, "stopped_because": NO_MOVE_LEFT}, (), True),
        ({"left_out": ("oneDNN",), "stopped_because": NO_MOVE_LEFT}, (), False),
        ({"left_out": ("oneDNN",)}, ("oneDNN", "allocator"), True),
    ],
)
def test_a_kept_report_serves_searches_that_are_no_wider(changes, left_out, covers):
    assert report(**changes).covers(MeasureOptions(budget_seconds=60, max_candidates=4), left_out) is covers
