"""Trials between the chief and the workers of a search: nothing is lost or changed on the way."""

from types import SimpleNamespace

import pytest

from tfaccel.processes.fork_server import ForkedChild
from tfaccel.training.run.run_dir import RunDir
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.search_processes import SearchProcesses
from tfaccel.tuning.search_result import TrialRow, read_hyperparameters, write_outcome
from tfaccel.tuning.supervisor import Supervisor, _Slot

LOSS = Objective((("val_loss", "min"),))


@pytest.fixture
def opened(tmp_path, logical_devices):
    """An oracle, opened as the chief opens it, and what it has told."""
    import keras_tuner

    from tfaccel.tuning.chief_program import _opened

    hp = keras_tuner.HyperParameters()
    hp.Boolean("flag")
    hp.Int("width", 2, 2)
    directory = RunDir(tmp_path, {})
    directory.make()
    task = {
        "identity": directory.identity,
        "objective": LOSS,
        "options": SearchOptions(max_trials=4),
        "space": hp.get_config(),
        "epochs": 1,
    }
    told = []
    return _opened(SimpleNamespace(send=told.append), task), told


def test_a_trial_ends_with_what_it_has_asked_for_and_no_value_becomes_another(tmp_path, opened):
    import keras_tuner

    oracle, told = opened
    trial = oracle.create_trial("worker-0")
    hp = keras_tuner.HyperParameters.from_config(read_hyperparameters(tmp_path, trial.trial_id))
    before = dict(hp.values)
    hp.Choice("late", ["b", "a"])
    row = TrialRow(
        trial_id=trial.trial_id,
        hyperparameters=dict(hp.values),
        status="completed",
        score=0.5,
        seconds=1.0,
        metrics={"val_loss": 0.5},
    )
    write_outcome(tmp_path, row)
    oracle.finish(trial.trial_id, hp.get_config())
    assert [message["row"].trial_id for message in told] == [trial.trial_id]
    assert [entry.name for entry in oracle.hyperparameters.space] == ["flag", "width", "late"]
    values = read_hyperparameters(tmp_path, trial.trial_id)["values"]
    assert values == {**before, "late": "b"}
    assert type(values["flag"]) is bool
    assert oracle.trials[trial.trial_id].score == 0.5
    oracle.finish(trial.trial_id, hp.get_config())  # once more: ignored
    assert len(told) == 1


def test_a_trial_goes_only_to_the_worker_that_asked_for_it():
    """A worker that dies while it waits leaves an answer behind, which the next one in its place must not take."""
    sent = []
    child = ForkedChild("worker-0.1", None, SimpleNamespace(send=sent.append))
    supervisor = Supervisor(None, SearchOptions(max_trials=4), SearchProcesses([]), lambda row: None)
    supervisor._slots = [slot] = [_Slot(0, child)]
    answer = {"event": "trial", "worker": 0, "child": "worker-0.1", "status": "RUNNING", "trial_id": "0"}
    supervisor._handle_chief(answer)
    assert (sent, slot.trial_id) == ([], None)
    slot.asks = True
    supervisor._handle_chief({**answer, "child": "worker-0.0"})  # for the one before it
    assert (sent, slot.trial_id) == ([], None)
    supervisor._handle_chief(answer)
    supervisor._handle_chief(answer)
    assert (sent, slot.trial_id, slot.asks) == ([answer], "0", False)
