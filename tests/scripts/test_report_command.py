"""`tfaccel report` reads what the other commands wrote."""

import json
import shutil

import pytest

RECIPE = "--recipe=tabular_classification"


def test_unfinished_run_is_reported_and_problems_are_said_once(run_python, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"recipe": "digits", "options": {}, "epochs": 3}')
    (tmp_path / "run" / "metrics.jsonl").write_text('{"epoch": 0, "step": 4, "seconds": 1.0, "loss": 0.5}\n{"ep')
    done = run_python("tfaccel.scripts.main", "report", "run", "--json", "run", cwd=tmp_path, fresh=True)
    assert json.loads(done.stdout) == {
        "output": "report.html",
        "num_bytes": (tmp_path / "report.html").stat().st_size,
        "sections": {"Summary": 0, "Learning curves": 1, "Roofline": 0, "Options": 0},
        "problems": ["run: metrics.jsonl: line 2 is damaged and left out"],
    }
    assert done.stderr.splitlines() == ["Left out of the report: run: metrics.jsonl: line 2 is damaged and left out"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run"]


@pytest.mark.slow
def test_what_commands_write_is_reported(run_python, tmp_path):
    def tfaccel(*arguments):
        return run_python(
            "tfaccel.scripts.main", *arguments, cwd=tmp_path, env={"TFACCEL_CACHE": str(tmp_path / "cache")}
        )

    tfaccel("train", RECIPE, "--epochs=3", "--run_dir=run", "--quiet")
    tfaccel("search", RECIPE, "--epochs=1", "--max_trials=2", "--run_dir=search")
    tfaccel("compress", "--run_dir=run", "--methods=dynamic", "--latency_seconds=0.1", "--max_metric_drop=1", "--quiet")
    tfaccel("find-fastest", RECIPE, "--max_candidates=2", "--report=autotune.json", "--quiet")
    done = tfaccel("report", "run", "search", "--autotune_report=autotune.json", "--output=all.html", "--json")
    report = json.loads(done.stdout)
    assert report["problems"] == []
    for title in ("Learning curves", "Search", "Compressed variants", "Speed and utilization"):
        assert report["sections"][title] > 0
    assert {"Pictures", "Plan", "Measured candidates", "Environment"} <= report["sections"].keys()
    shutil.rmtree(tmp_path / "search")
    assert "all.html" in tfaccel("report", "run", "--output=all.html").stdout
