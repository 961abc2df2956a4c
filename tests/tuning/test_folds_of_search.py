"""Searches with folds: their scores, which trials stop, what is kept of a killed one, and what is refused."""

import json
import os
import signal
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import fold_cases
import pytest
import search_cases

from tfaccel import train
from tfaccel.data.folds import cut_fold
from tfaccel.data.given_data import GivenArrays
from tfaccel.errors import SearchError
from tfaccel.processes.child import NO_INPUT, Child
from tfaccel.training.run.run_dir import RunIdentity
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.search import search
from tfaccel.tuning.search_result import SearchResult, TrialRow
from tfaccel.tuning.trial_run import TrialRunner, lost_cause

HERE = Path(__file__).parent
PLAN = {"dtype_policy": "float32", "strategy": "none"}
LOSS, ACCURACY = Objective((("val_loss", "min"),)), Objective((("val_accuracy", "max"),))


@pytest.fixture(autouse=True)
def where_workers_find_the_cases(monkeypatch):
    monkeypatch.chdir(HERE)


def finished(*scores):
    mean = statistics.fmean(scores)
    return TrialRow(
        trial_id="0", hyperparameters={}, status="completed", score=mean, seconds=1.0, fold_scores=tuple(scores)
    )


def test_scores_are_those_of_folds_cut_by_hand_and_a_trial_that_has_lost_stops(tmp_path, logical_devices):
    result = search(
        fold_cases.workload,
        fold_cases.space,
        run_dir=tmp_path / "run",
        algorithm="grid",
        folds=4,
        seed=3,
        retrain=True,
        plan_fields=PLAN,
    )
    first, second, last = result.rows
    assert (first.status, second.status, last.status) == ("completed", "completed", "pruned")
    assert len(last.fold_scores) == 1
    assert last.cause.startswith("After 1 of 4 folds its mean was")
    losses = []
    for fold in range(4):
        cut = cut_fold(GivenArrays(fold_cases.INPUTS, fold_cases.LABELS), fold, num_folds=4, seed=3)
        (x, y), held_out = [(part._parts["x"], part._parts["y"]) for part in cut]
        by_hand = fold_cases.of_arrays(x, y, 0.1, validation_data=held_out)
        run = train(by_hand, **PLAN, run_dir=tmp_path / str(fold), epochs=1, seed=3, verbose=0)
        losses.append(run.final["loss"])
    assert first.fold_scores == tuple(losses)
    assert first.score == statistics.fmean(losses)
    assert first.spread == statistics.stdev(losses)
    assert f"± {first.spread:.2g}" in result.results_summary()
    assert SearchResult.from_json(json.loads((tmp_path / "run" / "search.json").read_text())) == result


def test_data_that_cannot_be_cut(tmp_path, logical_devices):
    with pytest.raises(SearchError, match="Only arrays can be split into folds"):
        search(search_cases.workload, search_cases.build, run_dir=tmp_path / "run", folds=3)


class OfFolds(TrialRunner):
    """Its score is the number of the fold; a fold may be interrupted."""

    begun: ClassVar[list[int]] = []

    def _execution(self, trial_id, hp, execution, *, fold=None):
        self.begun.append(fold)
        if self.begun == [0, 1]:
            raise KeyboardInterrupt
        return {"status": "completed", "cause": None, "score": float(fold), "metrics": {}, "train_seconds": 1.0}


def test_finished_folds_are_kept_and_those_of_other_workers_awaited(tmp_path):
    folder = tmp_path / "tuner" / "trial_7"
    folder.mkdir(parents=True)
    options = SimpleNamespace(options=SearchOptions(folds=4), tuner=None)
    runner = OfFolds(maker=options, objective=LOSS, builds_models=True, identity=RunIdentity(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        runner.run("7", SimpleNamespace(values={}))
    waited = []

    def claim(trial_id, fold):  # another worker trains the second fold, and is done once it has been asked for
        return fold != 1

    def sign():
        waited.append(sorted(path.name for path in folder.glob("fold_*.json")))
        runner.train_fold("7", None, 1)

    row = replace(runner, claim=claim, sign=sign).run("7", SimpleNamespace(values={}))
    assert OfFolds.begun == [0, 1, 2, 3, 1]
    assert waited == [["fold_0.json", "fold_2.json", "fold_3.json"]]
    assert (row.fold_scores, row.score) == ((0.0, 1.0, 2.0, 3.0), 1.5)


@pytest.mark.parametrize(
    ("scores", "best", "objective", "is_lost"),
    [
        ([4.01], (1.0, 3.0, 2.0), LOSS, True),
        ([2.99], (1.0, 3.0, 2.0), LOSS, False),  # not worse than all folds by the spread, 1
        ([3.5], (3.0, 1.0, 2.0), LOSS, False),  # nor than the same fold
        ([0.5, 0.5], (0.9, 0.8, 0.7), ACCURACY, True),
        ([0.8, 0.7], (0.9, 0.8, 0.7), ACCURACY, False),
        ([1.1], (1.0, 1.0), LOSS, True),
        ([1.0], (1.0, 1.0), LOSS, False),
    ],
)
def test_when_a_trial_has_lost(scores, best, objective, is_lost):
    assert (lost_cause(scores, finished(*best), objective) is not None) == is_lost


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"folds": 1}, "`folds` must be a whole number of at least 2"),
        ({"algorithm": "hyperband"}, "folds=3 does not go with algorithm='hyperband'"),
        ({"pruning": "median"}, "folds=3 does not go with pruning='median'"),
        ({"executions_per_trial": 2}, "folds=3 does not go with executions_per_trial"),
        ({"keep_models": True}, "folds=3 does not go with keep_models"),
    ],
)
def test_options_refused(others, words):
    with pytest.raises(SearchError, match=words):
        SearchOptions(**{"folds": 3, **others})


PROGRAM = """
import json, sys
import fold_cases, tfaccel

def space(hp):
    return {"learning_rate": hp.Float("learning_rate", 0.01, 0.5, sampling="log")}

fields = {"dtype_policy": "float32", "strategy": "mirrored", "devices": ("CPU:0", "CPU:1"), "num_logical_cpus": 2}
found = tfaccel.search(
    fold_cases.workload, space, run_dir=sys.argv[1], folds=3, max_trials=3, seed=1, resume="auto", plan_fields=fields
)
print(json.dumps([[row.trial_id, row.hyperparameters, row.score, list(row.fold_scores)] for row in found.rows]))
"""


BESIDE = """
import json, sys
import fold_cases, tfaccel

found = tfaccel.search(
    fold_cases.noting_processes,
    fold_cases.space,
    run_dir=sys.argv[1],
    folds=3,
    max_trials=1,
    epochs=2,
    seed=1,
    parallel=int(sys.argv[2]),
    plan_fields={"dtype_policy": "float32", "strategy": "none"},
)
print(json.dumps([[row.status, row.score, list(row.fold_scores)] for row in found.rows]))
"""


@pytest.mark.slow
def test_a_worker_without_a_trial_trains_folds_of_another(tmp_path):
    def search_with(parallel, **environment):
        file = tmp_path / f"processes_{parallel}{len(environment)}"
        child = Child(
            [sys.executable, "-c", BESIDE, str(tmp_path / file.name.replace("processes", "run")), str(parallel)],
            pipes=("stdout",),
            stdin=NO_INPUT,
            environment={"PROCESSES": str(file), **environment},
        )
        with child:
            out = child.process.stdout.read()
            assert child.process.wait() == 0, child.output()
        return json.loads(out.splitlines()[-1]), set(file.read_text().split())

    alone, one = search_with(1)
    beside, two = search_with(2)
    assert beside == alone
    assert (len(one), len(two)) == (1, 2)
    killed, begun = search_with(2, ENDS_HELPER="1")
    assert len(begun) >= 2
    assert killed == alone  # the worker of the trial trains that fold itself


@pytest.mark.slow
def test_a_killed_search_on_two_replicas_ends_as_one_that_was_not(tmp_path):
    def begin(run_dir):
        return Child([sys.executable, "-c", PROGRAM, str(run_dir)], pipes=("stdout",), stdin=NO_INPUT)

    def found(run_dir):
        with begin(run_dir) as child:
            out = child.process.stdout.read()
            assert child.process.wait() == 0, child.output()
        return json.loads(out.splitlines()[-1])

    with begin(tmp_path / "killed") as child:
        while not list((tmp_path / "killed").glob("*/trial_*1/fold_1.json")):
            assert child.process.poll() is None, child.output()
            time.sleep(0.05)
        os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()
    assert len(list((tmp_path / "killed").glob("*/trial_*/fold_*.json"))) < 9
    assert found(tmp_path / "killed") == found(tmp_path / "whole")
