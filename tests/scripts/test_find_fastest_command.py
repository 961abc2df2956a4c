"""`tfaccel find-fastest` measures a workload in files beside the user, and `tfaccel train` uses what it found."""

import json
import os
import signal
import subprocess
import sys
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

    shown = tfaccel("find-fastest", *ARGUMENTS, "--write=plan.json", "--report=report.json")
    written = json.loads((tmp_path / "report.json").read_text())
    report = Report.from_json(written)
    assert len(report.candidates) == 2
    assert report.plan == Plan.load(tmp_path / "plan.json")
    assert "Plans for " in shown.stdout
    assert "2 plans were measured (max_candidates=2)." in shown.stdout
    assert report.command.startswith("tfaccel train --workload=fastest_cases:workload ")
    assert f"To repeat it anywhere: {report.command}\n" in shown.stdout
    assert f"{report.candidates[1].axis}: " in shown.stderr
    again = tfaccel("find-fastest", *ARGUMENTS, "--json")
    assert json.loads(again.stdout) == {**written, "from_cache": True}
    assert "in an earlier call (--again measures again)" in tfaccel("find-fastest", *ARGUMENTS).stdout
    trained = tfaccel("train", ARGUMENTS[0], "--epochs=1", "--run_dir=run", "--json")
    assert json.loads(trained.stdout)["plan"]["jit_compile"] == report.plan.jit_compile
    assert Plan.load(tmp_path / "run" / "plan.json") == report.plan
    assert "(measured by `tfaccel find-fastest`, " in trained.stderr
    other = tfaccel("train", ARGUMENTS[0], "--epochs=1", "--run_dir=other", "--json", "--num_threads=1")
    assert "(by rules; --autotune measures)" in other.stderr


def interrupted_at_third_plan(folder, name, *flags):
    """What a command prints on standard output and error if Ctrl-C is pressed at its third plan."""
    environment = {**os.environ, "TFACCEL_CACHE": str(folder / "cache"), "PYTHONPATH": str(CASES)}
    words = [sys.executable, "-m", "tfaccel.scripts.main", name, ARGUMENTS[0], *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, cwd=folder, env=environment, start_new_session=True, **pipes) as child:
        for line in child.stderr:
            if "measuring plan 3" in line:
                os.killpg(child.pid, signal.SIGINT)
                break
        shown, errors = child.communicate(timeout=60)
    assert "Traceback" not in errors
    assert child.returncode == 130
    return shown, errors


@pytest.mark.slow
@pytest.mark.parametrize("command", ["find-fastest", "train --autotune --epochs=1 --run_dir=run"])
def test_after_ctrl_c_what_was_measured_is_shown_and_the_command_continues(tmp_path, command):
    name, *flags = command.split()
    shown, errors = interrupted_at_third_plan(tmp_path, name, *flags)
    assert errors.endswith(f"tfaccel {name}: Interrupted. The same command continues.\n")
    if name == "find-fastest":
        assert "Plans for " in shown and "It was interrupted." in shown
    assert not (tmp_path / "run").exists()
    (file,) = (tmp_path / "cache").rglob("*.json")
    assert not json.loads(file.read_text())["report"]["complete"]


@pytest.mark.slow
def test_what_was_measured_to_the_end_is_not_replaced_by_an_interrupted_search(run_python, tmp_path):
    environment = {"TFACCEL_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(CASES)}
    run_python("tfaccel.scripts.main", "find-fastest", *ARGUMENTS, env=environment, cwd=tmp_path)
    (file,) = (tmp_path / "cache").rglob("*.json")
    kept = file.read_bytes()
    shown, errors = interrupted_at_third_plan(tmp_path, "find-fastest", "--again")
    assert errors.endswith("Interrupted. What an earlier call measured to the end stays kept.\n")
    assert "It was interrupted." in shown
    assert file.read_bytes() == kept


def test_one_of_several_workers_is_refused(run_python, tmp_path):
    cluster = {"cluster": {"worker": ["one:1", "two:1"]}, "task": {"type": "worker", "index": 0}}
    environment = {"TF_CONFIG": json.dumps(cluster), "PYTHONPATH": str(CASES)}
    for words in (("find-fastest",), ("train", "--autotune", "--epochs=1", "--run_dir=run")):
        arguments = (words[0], ARGUMENTS[0], *words[1:])
        child = run_python("tfaccel.scripts.main", *arguments, env=environment, cwd=tmp_path, check=False)
        assert child.returncode == 2
        assert child.stderr.splitlines()[-1].startswith(
            f"tfaccel {words[0]}: Plans are measured on one machine, but all workers must train with the same plan. "
            "Received: a cluster of 2 workers (tf_config)."
        )
    assert not (tmp_path / "run").exists()
