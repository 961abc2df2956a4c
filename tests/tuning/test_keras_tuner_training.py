"""Keras Tuner's guides to training of one's own and to failed trials: run as they are, or refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import guide_cases as cases
import guide_training as training
import pytest
from guide_searches import FLOAT32, HERE, Case, objective, search_as_guided

from tfaccel.errors import SearchError
from tfaccel.tuning.search import search


@pytest.fixture(autouse=True)
def where_workers_find_the_cases(monkeypatch, tmp_path, logical_devices):
    monkeypatch.chdir(HERE)
    monkeypatch.setenv("TFACCEL_TEST_TRIES", str(tmp_path))


def counts(result, **numbers):
    statuses = [row.status for row in result.rows]
    return {name: statuses.count(name) for name in numbers} == numbers


def tried(result):
    return len((Path(result.run_dir).parent / "tries").read_text().splitlines())


FAILED_TRIALS = {
    "max_retries_per_trial": Case(
        cases.numbers,
        cases.too_large,
        {"algorithm": "grid", "objective": "val_loss", "max_retries_per_trial": 2},
        lambda result: counts(result, completed=6, failed=6) and tried(result) == 18,
        trials_fail=True,
    ),
    "FailedTrialError": Case(
        cases.numbers,
        cases.too_large_for_good,
        {"algorithm": "grid", "objective": "val_loss", "max_retries_per_trial": 2},
        lambda result: counts(result, completed=6, failed=6) and tried(result) == 6,
        trials_fail=True,
    ),
    "max_consecutive_failed_trials": Case(
        cases.numbers,
        cases.too_large,
        {"algorithm": "grid", "objective": "val_loss", "max_consecutive_failed_trials": 2},
        refused=r"2 trials in a row have failed \(max_consecutive_failed_trials\), the last one with: ValueError: "
        r"Model too large!.*Finished trials are kept",
        trials_fail=True,
    ),
    "FatalError": Case(
        cases.numbers,
        cases.too_large_for_all,
        {"algorithm": "grid", "objective": "val_loss"},
        refused=r"Trial \d+ ended the search: FatalValueError: Model too large! .*trials are kept; continue with",
        trials_fail=True,
    ),
}

OWN_TRAINING = {
    "a loop of one's own": Case(
        cases.numbers,
        training.OwnLoop(),
        {"objective": objective("my_metric", "min"), "max_trials": 2},
        lambda result: [row.epochs for row in result.rows] == [2, 2],
        names="batch_size rate units",
    ),
    "more hyperparameters for Keras Tuner's run_trial": Case(
        cases.images,
        training.TunedShuffle(),
        {"tuner": training.TunedByTuner, "objective": "val_accuracy", "max_trials": 2, "executions_per_trial": 2},
        lambda result: result.algorithm == "bayesian",
        names="batch_size shuffle units",
    ),
    "a loop that tells the oracle": Case(
        cases.numbers,
        cases.with_built_in_metric,
        {"tuner": training.TellsOracle, "objective": objective("loss", "min"), "max_trials": 2},
        lambda result: all(row.score == row.metrics["loss"] for row in result.rows),
        names="units",
    ),
    "an argument that there is not": Case(
        cases.numbers,
        training.NeedsMore,
        refused="NeedsMore.run_trial needs 'train_ds', which a search cannot pass",
    ),
    "a hook that is never called": Case(
        None,
        training.OwnEnd,
        refused="OwnEnd overrides on_trial_end, which a search never calls",
    ),
    "an object for a class": Case(
        None,
        lambda folder: training.AnyFunction(max_trials=2, directory=folder / "other"),
        refused="Pass the class AnyFunction, not an instance",
    ),
}

ALL = {**FAILED_TRIALS, **OWN_TRAINING}


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL.values(), ids=ALL)
def test_guide(case, tmp_path):
    search_as_guided(case, tmp_path)


def test_chiefs_and_workers_by_hand_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("KERASTUNER_TUNER_ID", "tuner0")
    with pytest.raises(SearchError, match=r"KERASTUNER_TUNER_ID is set, .* use parallel=NUMBER"):
        search(cases.images, cases.several_layers, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_search_that_was_ended_goes_on(tmp_path):
    """What ended it is tried again, and what was finished is not."""
    seen = []
    for resume in ("never", "auto"):
        with pytest.raises(SearchError, match="ended the search") as raised:
            search(
                cases.numbers,
                cases.too_large_for_all,
                run_dir=tmp_path / "run",
                algorithm="grid",
                resume=resume,
                objective="val_loss",
                plan_fields=FLOAT32,
            )
        seen.append((str(raised.value), (tmp_path / "run" / "trials.jsonl").read_text()))
    assert seen[0] == seen[1]
    assert {json.loads(line)["status"] for line in seen[0][1].splitlines()} == {"completed"}
