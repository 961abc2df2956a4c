"""Processes of a search that are killed, hang or crash: each costs its trial only, and a killed search goes on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import search_cases
from search_cases import by_ending, lines

from tfaccel.errors import RunDirError
from tfaccel.training.run.run_dir import RunDir
from tfaccel.tuning.search import search
from tfaccel.tuning.search_result import read_rows

HERE = Path(__file__).parent
FLOAT32 = {"dtype_policy": "float32"}


@pytest.fixture(autouse=True)
def where_workers_find_the_cases(monkeypatch):
    monkeypatch.chdir(HERE)


def workers():
    return [process for process in psutil.Process().children(recursive=True) if process.name().startswith("worker-")]


@pytest.mark.slow
def test_every_ending_is_a_row_with_its_cause(tmp_path):
    before = psutil.Process().children(recursive=True)
    result = search(
        search_cases.workload,
        search_cases.end_somehow,
        run_dir=tmp_path,
        algorithm="grid",
        parallel=2,
        trial_seconds=20.0,
        plan_fields=FLOAT32,
    )
    rows = by_ending(result)
    assert len(result.rows) == len(rows) == 9
    assert {ending for ending, row in rows.items() if row.status == "completed"} == {"well", "well again"}
    assert rows["killed"].cause == "Its process was killed by SIGKILL (often: out of memory)."
    assert rows["faults"].cause == "Its process was killed by SIGSEGV (invalid memory access)."
    assert rows["exits"].cause == "Its process ended with status 3."
    assert rows["hangs"].cause == "It took longer than 20 seconds (trial_seconds)."
    assert rows["memory"].cause == "Out of memory"
    assert sorted(line["trial_id"] for line in lines(tmp_path)) == [row.trial_id for row in result.rows]
    assert set(psutil.Process().children(recursive=True)) <= set(before)


@pytest.mark.slow
def test_a_trial_without_a_sign_of_life_is_ended(tmp_path):
    result = search(
        search_cases.workload,
        search_cases.end_somehow,
        run_dir=tmp_path,
        algorithm="grid",
        max_trials=7,
        stall_seconds=15.0,
        plan_fields=FLOAT32,
    )
    assert by_ending(result)["hangs"].cause == "It sent no heartbeat for 15 seconds (stall_seconds)."


@pytest.mark.slow
def test_a_worker_killed_from_outside_costs_its_trial_only(tmp_path):
    killed = []

    def kill_one(row):
        if not killed:
            killed.append(workers()[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    result = search(
        search_cases.workload,
        search_cases.slow_arguments,
        run_dir=tmp_path,
        max_trials=6,
        parallel=2,
        plan_fields=FLOAT32,
        on_row=kill_one,
    )
    assert len(result.rows) == 6
    failed = [row for row in result.rows if row.status == "failed"]
    assert [row.cause for row in failed] in (
        [],
        ["Its process was killed by SIGKILL (often: out of memory)."],
    )  # none, between two trials


PROGRAM = """
import search_cases, sys
from tfaccel.errors import RunDirError
from tfaccel.training.run.run_dir import RunDir
from tfaccel.tuning.search import search

if __name__ == "__main__":
    algorithm, run_dir = sys.argv[1:]
    space = search_cases.slow_grid if algorithm == "grid" else search_cases.slow_arguments
    search(search_cases.workload, space, run_dir=run_dir, algorithm=algorithm, max_trials=8, parallel=2, resume="auto",
           epochs=9 if algorithm == "hyperband" else 2, plan_fields={"dtype_policy": "float32"})
"""


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["random", "grid", "bayesian", "hyperband", "tpe"])
def test_a_search_killed_again_and_again_loses_and_repeats_nothing(tmp_path, algorithm):
    program, run_dir = tmp_path / "program.py", tmp_path / "run"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), algorithm, str(run_dir)]
    finished = []
    for fewest in (2, 5):
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(HERE)}, start_new_session=True) as process:
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline and len(read_rows(run_dir / "trials.jsonl")) < fewest:
                time.sleep(0.02)
            own = psutil.Process(process.pid).children(recursive=True)
            process.kill()
        _, alive = psutil.wait_procs(own, timeout=10)
        assert alive == []  # chief and workers end with their parent
        finished.append(lines(run_dir))
        assert len(finished[-1]) >= fewest
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(HERE)}, check=True, timeout=200)
    last = lines(run_dir)
    assert last[: len(finished[0])] == finished[0]
    assert last[: len(finished[1])] == finished[1]
    values = [json.dumps(line["hyperparameters"], sort_keys=True) for line in last]
    assert len(last) == len({line["trial_id"] for line in last}) == len(set(values)) == 8
    assert {line["status"] for line in last} == {"completed"}


@pytest.mark.slow
def test_memory_does_not_grow(tmp_path):
    sizes = []

    def weigh(row):
        sizes.append(sum(process.memory_info().rss for process in workers()))

    result = search(
        search_cases.workload, search_cases.build, run_dir=tmp_path, max_trials=50, plan_fields=FLOAT32, on_row=weigh
    )
    assert len(result.rows) == 50
    assert {row.status for row in result.rows} == {"completed"}
    early, late = max(sizes[5:10]), max(sizes[45:])
    assert late - early < 100 * 2**20, [size // 2**20 for size in sizes]
    assert (tmp_path / "importance.png").exists()


@pytest.mark.slow
def test_a_search_leaves_a_directory_alone_that_another_search_has_taken(tmp_path):
    run_dir, moved, before = tmp_path / "run", tmp_path / "moved", {}

    def files():
        return {file: file.stat().st_mtime_ns for file in run_dir.rglob("*") if file.is_file()}

    def move(row):
        if not before:
            run_dir.rename(moved)
            other = RunDir(run_dir, {"search": "another"})
            other.make(run_dir / "tuner" / f"trial_{int(row.trial_id) + 1}")
            before.update(files())

    with pytest.raises(RunDirError, match=r"/run no longer holds this run: it was moved or emptied"):
        search(
            search_cases.workload,
            search_cases.slow_arguments,
            run_dir=run_dir,
            max_trials=6,
            plan_fields=FLOAT32,
            on_row=move,
        )
    assert workers() == []
    assert files() == before
    assert len(read_rows(moved / "trials.jsonl")) >= 1


@pytest.mark.slow
def test_a_trial_does_not_go_on_from_the_state_of_another_one(tmp_path):
    def swap(row):
        first = tmp_path / "tuner" / f"trial_{row.trial_id}" / "state.npz"
        if first.exists():
            other = next((one for one in first.parent.parent.glob("*/state.npz") if one != first), None)
            if other is not None:
                shutil.copy(other, first)

    result = search(
        search_cases.workload,
        search_cases.slow_arguments,
        run_dir=tmp_path,
        algorithm="hyperband",
        epochs=3,
        max_trials=6,
        max_consecutive_failed_trials=99,
        plan_fields=FLOAT32,
        on_row=swap,
    )
    causes = [row.cause for row in result.rows if "tuner/trial_id" in row.hyperparameters]
    assert any("is the state of another trial, or of another search" in (cause or "") for cause in causes)
