"""`find_fastest` measures plans in processes of their own: failures are results, wrong losses are rejected."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from fastest_search import finder

from tfaccel.errors import PlanError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.measuring.duel import departure
from tfaccel.measuring.report import Candidate, MeasureOptions, Report
from tfaccel.planning.moves import SMALL_GAIN
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_cache import keep_plan
from tfaccel.planning.workload import Workload
from tfaccel.training.run.performance import TimedWindow


@pytest.fixture
def find(run_python, tmp_path):
    return finder(run_python, tmp_path)


def by_threads(report):
    """Candidates by the number of parallel operations in their plan."""
    return {candidate.plan.inter_op_threads: candidate for candidate in report.candidates}


@pytest.mark.slow
def test_a_plan_is_chosen_with_evidence_and_found_again(find):
    report = find("workload")
    first = report.candidates[0]
    assert first.axis == "first plan"
    assert {one.axis for one in report.candidates} >= {"XLA", "threads"}
    for one in report.candidates:
        assert not one.failure
        assert one.examples_per_second > 0
        assert min(one.build_seconds, one.first_step_seconds, one.peak_bytes) > 0
        far_slower = one.speedup is not None and one.speedup < 0.7  # then it lost in its first round
        assert len(one.windows) >= 2 - far_slower
    losers = [one for one in report.candidates if one.speedup is not None and one.rejection]
    assert all(one.rejection.startswith(("Slower: ", "No measurable difference: ")) for one in losers)
    assert report.complete
    assert report.step_operations == 2 * 32 * (2 * 16 * 64 + 3 * 64 * 2)
    assert report.stopped_because == "No further move is left."
    again = find("workload")
    assert again.from_cache
    assert again.plan == report.plan


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no moves of threads")
def test_a_crash_and_a_hang_are_results(find):
    report = find("dying", limit_seconds=20)
    found = by_threads(report)
    assert "was killed by SIGKILL" in found[1].failure
    assert found[max(found, key=lambda number: number or 0)].failure == (
        "The process was ended: it took longer than 20 seconds to build the model."
    )
    assert not report.candidates[report.chosen].failure


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no moves of threads")
def test_other_losses_are_rejected(find):
    report = find("wrong")
    found = by_threads(report)
    assert "where that of float32 is" in found[1].rejection
    assert found[max(found, key=lambda number: number or 0)].rejection == "Its loss is not finite."
    assert report.plan.inter_op_threads is None


ONE_AXIS = {"jit_compile": False, "fused_kernels": False, "onednn": None, "memory_allocator": None}


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no moves of threads")
def test_losses_that_become_nan_while_a_plan_is_timed_are_rejected(find):
    report = find("diverging", measure={"max_candidates": 3}, **ONE_AXIS)
    assert by_threads(report)[1].failure == "Its loss is not finite in later steps."
    assert report.plan.inter_op_threads != 1


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no moves of threads")
def test_the_best_plan_so_far_may_die(find):
    report = find("dying_later", measure={"max_candidates": 3}, limit_seconds=30, **ONE_AXIS)
    assert "was killed by SIGKILL" in report.candidates[0].failure
    assert report.plan.inter_op_threads == 1
    assert not report.candidates[report.chosen].failure


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so(run_python, tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text("""
import keras, numpy as np, tfaccel
from tfaccel.errors import TfaccelError

def build_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

x = np.ones((64, 4))
try:
    tfaccel.find_fastest(build_model, x, x[:, :1], loss="mse")
except TfaccelError as error:
    print(error)
    if __name__ == "__mp_main__":
        raise
""")
    environment = {**os.environ, "TFACCEL_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, str(script)]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path, check=True)
    assert f"Each process that is started runs {script} again, and would start others." in child.stdout
    assert 'Put the call in it under `if __name__ == "__main__":`.' in child.stdout


@pytest.mark.slow
def test_modules_beside_a_script_are_found(tmp_path):
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "my_models.py").write_text(
        "import keras\n\ndef build_model():\n    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])\n"
    )
    (folder / "train.py").write_text("""
import numpy as np, tfaccel
from my_models import build_model

if __name__ == "__main__":
    x = np.ones((64, 4))
    measure = tfaccel.options.MeasureOptions(max_candidates=1)
    print(tfaccel.find_fastest(build_model, x, x[:, :1], loss="mse", measure=measure).stopped_because)
""")
    environment = {**os.environ, "TFACCEL_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, str(folder / "train.py")]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path, check=True)
    assert child.stdout == "One plan was measured (max_candidates=1).\n"


@pytest.mark.slow
def test_bad_input_says_why(find):
    kind, message = find("failing")
    assert kind == "PlanError"
    assert message.startswith(
        "No plan could be measured. first plan: build_model of workload 'fastest_cases' raised ValueError: no such file"
    )
    kind, message = find("workload", budget_seconds=0.5)
    assert kind == "PlanError"
    assert message.startswith("budget_seconds=0.5 is too small to compare plans: to start and warm up the first")
    kind, message = find("no_such_function")
    assert kind == "WorkloadError"


@pytest.mark.slow
def test_limits_hold_for_the_reference_too(find):
    """The rules' plan is measured after float32, if that is another one."""
    fixed = {"dtype_policy": "mixed_bfloat16"}
    kind, message = find("workload", budget_seconds=0.5, **fixed)
    assert kind == "PlanError"
    assert message.startswith("budget_seconds=0.5 is too small to compare plans: to start and warm up the first")
    kind, message = find("workload", measure={"max_candidates": 1}, **fixed)
    assert kind == "PlanError"
    assert message == (
        "No plan could be measured. reference: Without your fixed fields; measured for the reference loss only. "
        "One plan was measured (max_candidates=1)."
    )


@pytest.mark.slow
def test_micro_batches_keep_batch_normalization(find):
    fixed = {"inter_op_threads": None, "intra_op_threads": None, "jit_compile": False, "fused_kernels": False}
    report = find("normalized", **fixed)
    [halved] = [one for one in report.candidates if one.axis == "micro-batches"]
    assert halved.rejection == (
        "Micro-batches would change the results: batch normalization (batch_normalization) would take its statistics "
        "over fewer rows."
    )
    plain = find("workload", **fixed)
    [halved] = [one for one in plain.candidates if one.axis == "micro-batches"]
    assert halved.plan.accumulation_steps == 2
    assert not halved.rejection.startswith("Micro-batches")


@pytest.mark.slow
def test_other_batches_are_tuned_if_asked_for(find):
    fixed = {"inter_op_threads": None, "intra_op_threads": None, "jit_compile": False}
    fixed |= {"fused_kernels": False, "grappler_bfloat16": False}
    report = find("workload", measure={"tune_batch": True, "max_candidates": 5}, **fixed)
    assert {one.plan.global_batch_size for one in report.candidates} >= {32, 64, 128}
    assert find("workload", measure={"max_candidates": 2}, **fixed).plan.global_batch_size == 32


@pytest.mark.slow
def test_a_slow_model_tries_both_moves_at_once(find):
    options = {"hardware": {"cpu_features": ("AVX2",)}, "measure": {"for_new_process": True}}
    report = find("slow", budget_seconds=78, **options)
    assert [one.axis for one in report.candidates][1] == "oneDNN and kernels"
    assert report.plan.onednn and report.plan.fused_kernels
    assert report.gains["oneDNN and kernels"] > 1.5
    assert dict(report.plan.reasons)["fused_kernels"].startswith("Measured on this machine: oneDNN and kernels, ")


@pytest.mark.slow
@pytest.mark.usefixtures("logical_devices")
def test_a_search_takes_its_time_where_what_others_taught_does_not_hold(find, tmp_path, monkeypatch):
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path))
    hardware = {"cpu_features": ("AVX2",)}
    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, onednn=True, fused_kernels=True)
    other = Workload("other", object, dict, lambda *args, **kwargs: None, global_batch_size=8)
    candidates = (Candidate(plan=plan, axis="oneDNN and kernels", speedup=4.0),)
    taught = Report(workload="other", candidates=candidates, chosen=0, seconds=1.0, hardware={}, versions={})
    keep_plan(replace(detect_hardware(), **hardware), other, {}, plan, speedup=4.0, report=taught.to_json())
    report = find("workload", budget_seconds=None, hardware=hardware, measure={"for_new_process": True})
    both = report.candidates[1]
    assert (report.num_lessons, both.axis) == (1, "oneDNN and kernels")
    assert report.budget_seconds == (20 if both.speedup >= SMALL_GAIN else 30)


@pytest.mark.slow
def test_batches_that_exceed_the_memory_are_not_tried(find):
    fixed = {"inter_op_threads": None, "intra_op_threads": None, "jit_compile": False, "fused_kernels": False}
    options = {"measure": {"tune_batch": True, "max_candidates": 6}, "hardware": {"memory_bytes": 100 * 2**20}, **fixed}
    report = find("workload", **options)
    larger = [one for one in report.candidates if one.plan.global_batch_size > 32]
    assert len(larger) == 3
    assert all(one.rejection.startswith("It would need an estimated ") and not one.windows for one in larger)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "megabytes", "axis"), [("deep", 90, "rematerialization"), ("words", 100, "logits")])
def test_a_plan_that_runs_out_of_memory_is_measured_with_less(find, case, megabytes, axis):
    limit = {"TF_MKL_ALLOC_MAX_BYTES": str(megabytes * 10**6), "TF_ENABLE_ONEDNN_OPTS": "1"}  # of oneDNN's allocator
    for _ in range(4):
        report = find(case, measure={"max_candidates": 2}, env=limit)
        if isinstance(report, Report):
            break
        assert "SIGSEGV" in report[1]  # what oneDNN sometimes does without memory, in place of an error
    kept, smaller = report.candidates
    assert kept.failure
    assert smaller.axis == axis
    assert (report.plan.rematerialization, report.plan.logit_chunks) == {
        "rematerialization": (True, 1),
        "logits": (False, 16),
    }[axis]


PLAN = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
WINDOW = TimedWindow(seconds=0.5, num_steps=10, loss=1.0)


def test_report_survives_json():
    candidates = (
        Candidate(plan=PLAN, axis="first plan", windows=(WINDOW,), peak_bytes=2**20),
        Candidate(plan=PLAN, axis="XLA", failure="The process was killed by SIGKILL."),
    )
    report = Report(workload="w", candidates=candidates, chosen=0, seconds=1.0, hardware={}, versions={})
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report
    assert report.rows()[1][-1] == "The process was killed by SIGKILL."
    assert report.speedup == 1.0


@pytest.mark.parametrize(
    ("losses", "reason"),
    [
        ((1.0, 0.9), ""),
        ((1.04, 0.93), ""),
        ((1.06, 0.9), "Its loss is 1.06 where that of float32 is 1: more than 5 % apart."),
        ((1.0, float("inf")), "Its loss is not finite."),
        ((1.06, 0.9, 0.5), ""),
        ((1.06, 0.9, 0.6), "Its loss is 0.695 where that of float32 is 0.6125: more than 5 % apart."),
        ((1.0, 0.9, float("nan")), "Its loss is not finite."),
    ],
)
def test_losses_are_compared_with_those_of_float32(losses, reason):
    assert departure(losses, (1.0, 0.9, 0.5)) == reason


@pytest.mark.parametrize("name", ["budget_seconds", "max_candidates", "limit_seconds"])
def test_limits_are_positive(name):
    with pytest.raises(PlanError, match=f"{name} must be positive. Received: {name}=0"):
        MeasureOptions(**{name: 0})
