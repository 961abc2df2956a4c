"""`tfaccel autotune` measures a workload in files beside the user, and `tfaccel train` uses what it found."""

import json
from pathlib import Path

import pytest

from tfaccel.measuring.report import Report
from tfaccel.planning.plan import Plan

CASES = Path(__file__).parent.parent / "measuring"
ARGUMENTS = ("--workload=fastest_cases:workload", "--max_candidates=2")


@pytest.mark.slow
def test_measured_plan_is_written_kept_and_used(run_python, tmp_path):
    environment = {"TFACCEL_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(CASES)}

    def tfaccel(*arguments):
        return run_python("tfaccel.scripts.main", *arguments, env=environment, cwd=tmp_path)

    shown = tfaccel("autotune", *ARGUMENTS, "--write=plan.json", "--report=report.json")
    written = json.loads((tmp_path / "report.json").read_text())
    report = Report.from_json(written)
    assert len(report.candidates) == 2
    assert report.plan == Plan.load(tmp_path / "plan.json")
    assert "Plans for " in shown.stdout
    assert "2 plans were measured (max_candidates)." in shown.stdout
    assert f"{report.candidates[1].axis}: " in shown.stderr
    again = tfaccel("autotune", *ARGUMENTS, "--json")
    assert json.loads(again.stdout) == {**written, "from_cache": True}
    trained = tfaccel("train", ARGUMENTS[0], "--epochs=1", "--run_dir=run", "--json")
    assert json.loads(trained.stdout)["plan"]["jit_compile"] == report.plan.jit_compile
    assert Plan.load(tmp_path / "run" / "plan.json") == report.plan
    assert "(measured by `tfaccel autotune`, " in trained.stderr
    other = tfaccel("train", ARGUMENTS[0], "--epochs=1", "--run_dir=other", "--json", "--num_threads=1")
    assert "(by rules; --autotune measures)" in other.stderr
