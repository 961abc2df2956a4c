"""What `find_fastest` keeps: it is found again, continued, measured anew where it is damaged, and used by `train`."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fastest_search import HERE, PROGRAM, finder

from tfaccel.measuring.report import Report
from tfaccel.planning.plan import Plan


@pytest.fixture
def find(run_python, tmp_path):
    return finder(run_python, tmp_path)


@pytest.mark.slow
def test_a_search_with_wider_limits_continues(find):
    first = find("workload", measure={"max_candidates": 2})
    assert first.stopped_because == "2 plans were measured (max_candidates=2)."
    assert find("workload", measure={"max_candidates": 1}).from_cache
    further = find("workload", measure={"max_candidates": 4})
    assert not further.from_cache
    assert [one.plan for one in further.candidates][:2] == [one.plan for one in first.candidates]
    assert len(further.candidates) == 4
    assert Path(further.kept_in).parent.name == "plans"
    assert further.command.startswith("tfaccel train --workload=fastest_cases:workload ")


@pytest.mark.slow
def test_a_damaged_report_is_measured_again(find, tmp_path):
    find("workload", measure={"max_candidates": 2})
    (file,) = tmp_path.rglob("*.json")
    entry = json.loads(file.read_text())
    for damage in ({}, {**entry["report"], "chosen": 7}, {**entry["report"], "candidates": []}):
        file.write_text(json.dumps({**entry, "report": damage}))
        assert not find("workload", measure={"max_candidates": 1}).from_cache


@pytest.mark.slow
def test_an_interrupted_search_goes_on(find, tmp_path):
    command = [sys.executable, "-c", PROGRAM, "workload", "60", "300", "{}"]
    environment = {**os.environ, "TFACCEL_CACHE": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE, env=environment) as child:
        interrupted_after = child.stdout.readline().strip()
        child.send_signal(signal.SIGINT)
        assert child.wait(60) != 0
    (file,) = tmp_path.rglob("*.json")
    kept = json.loads(file.read_text())["report"]
    assert not kept["complete"]
    assert kept["stopped_because"] == "It was interrupted."
    started = time.monotonic()
    report = find("workload")
    assert time.monotonic() - started > 1
    assert report.complete
    assert not report.from_cache
    assert interrupted_after in [one["axis"] for one in kept["candidates"]]
    plans = [replace(one.plan, reasons=()) for one in report.candidates]
    assert all(plans.count(plan) == 1 for plan in plans)  # an axis may come again, beside another gain


MODEL_PROGRAM = """
import json, sys
import keras
import tfaccel
from fastest_cases import X, Y, build_model

keras.config.set_dtype_policy("mixed_bfloat16")
model = build_model()
measure = tfaccel.options.MeasureOptions(max_candidates=3)
report = tfaccel.find_fastest(model, X, Y, batch_size=32, measure=measure)
result = tfaccel.train(model, X, Y, batch_size=32, epochs=1, run_dir=sys.argv[1], verbose=0)
print(json.dumps([report.to_json(), result.plan.to_json()]))
"""


@pytest.mark.slow
def test_a_model_is_measured_in_its_dtype_policy_and_trained_with_the_kept_plan(run_python, tmp_path):
    environment = {"TFACCEL_CACHE": str(tmp_path / "cache")}
    child = run_python(MODEL_PROGRAM, str(tmp_path / "run"), cwd=HERE, env=environment, fresh=True)
    report, trained = json.loads(child.stdout.splitlines()[-1])
    report = Report.from_json(report)
    assert {one.plan.dtype_policy for one in report.candidates if not one.failure} == {"mixed_bfloat16"}
    assert dict(trained["reasons"]) == dict(report.plan.reasons)
    assert Plan.from_json(trained) == report.plan
