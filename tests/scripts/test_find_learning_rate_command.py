"""`tfaccel find-learning-rate` tests rates, says what to do with the suggestion, and writes what it is asked for."""

import json
import os
from pathlib import Path

import pytest

from tfaccel import LearningRateReport

CASES = Path(__file__).parent.parent / "measuring"


@pytest.fixture(scope="module")
def tfaccel(run_python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rates")

    def call(*arguments, check=True):
        environment = {"TFACCEL_CACHE": str(folder / "cache"), "PYTHONPATH": str(CASES)}
        return run_python("tfaccel.scripts.main", *arguments, env=environment, cwd=folder, check=check)

    call.folder = folder
    return call


@pytest.mark.slow
def test_a_workload_is_tested_on_two_replicas(tfaccel):
    replicas = ("--strategy=mirrored", "--devices=CPU:0,CPU:1", "--logical_cpus=2")
    outputs = ("--picture=rates.png", "--report=rates.json", "--json")
    before = os.umask(0o077)
    try:
        child = tfaccel(
            "find-learning-rate", "--workload=fastest_cases:workload", "--num_steps=40", *replicas, *outputs
        )
    finally:
        os.umask(before)
    report = LearningRateReport.from_json(json.loads(child.stdout))
    assert json.loads((tfaccel.folder / "rates.json").read_text()) == report.to_json()
    assert (tfaccel.folder / "rates.png").stat().st_size > 5000
    written = [tfaccel.folder / "rates.json", tfaccel.folder / "rates.png"]
    assert {file.stat().st_mode & 0o777 for file in written} == {0o600}
    assert report.optimizer == "Adam"
    assert report.global_batch_size == 32
    assert 1e-4 < report.suggestion < 10


@pytest.mark.slow
def test_a_recipe_gets_the_command_that_uses_the_suggestion(tfaccel):
    shown = tfaccel("find-learning-rate", "--recipe=image_classification", "--optimizer=sgd", "--quiet")
    assert "step" not in shown.stderr
    assert "suggested learning rate" in shown.stdout
    assert "tfaccel train --recipe=image_classification --optimizer=sgd --learning_rate=" in shown.stdout


def test_no_suggestion_has_status_1(tfaccel):
    low = ("--min_learning_rate=1e-12", "--max_learning_rate=1e-10", "--num_steps=15", "--quiet")
    child = tfaccel("find-learning-rate", "--workload=fastest_cases:workload", *low, check=False)
    assert child.returncode == 1
    assert "step" not in child.stderr
    assert "no more than its noise" in child.stdout
    assert "tfaccel train" not in child.stdout
