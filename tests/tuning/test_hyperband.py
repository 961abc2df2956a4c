"""Hyperband where trials fail, and what a fit of one's own may return: Keras Tuner's parts, without processes."""

import doctest
import importlib
import types

import pytest

from tfaccel.errors import SearchError
from tfaccel.tuning.objective import Objective

LOSS = Objective((("val_loss", "min"),))


def run(oracle, failing):
    """Runs the trials of an oracle, one after the other: each one's bracket, round and trial to go on with."""
    rounds = []
    for number in range(100):
        trial = oracle.create_trial("tuner")
        if trial.status == "STOPPED":
            return rounds
        values = trial.hyperparameters.values
        rounds.append((values["tuner/bracket"], values["tuner/round"], values.get("tuner/trial_id")))
        trial.status = "FAILED" if failing(number) else "COMPLETED"
        if trial.status == "COMPLETED":
            oracle.update_trial(trial.trial_id, {"val_loss": float(number)})
        oracle.end_trial(trial)
    raise AssertionError("The oracle does not stop.")


def oracle(kind, folder):
    import keras_tuner

    space = keras_tuner.HyperParameters()
    space.Float("rate", 0.0, 1.0)
    found = kind(
        objective=keras_tuner.Objective("val_loss", "min"),
        max_epochs=9,
        seed=3,
        hyperparameters=space,
        max_consecutive_failed_trials=99,
    )
    found.verbose = 0
    found._set_project_dir(str(folder), "tuner")
    return found


def test_without_failures_hyperband_is_that_of_keras_tuner(tmp_path, logical_devices):
    from keras_tuner import oracles

    from tfaccel.tuning.oracles import HyperbandOracle

    own = run(oracle(HyperbandOracle, tmp_path / "a"), lambda number: False)
    assert own == run(oracle(oracles.HyperbandOracle, tmp_path / "b"), lambda number: False)
    assert sum(before is not None for _, _, before in own) > 5


def test_trials_that_are_left_go_on_where_others_fail(tmp_path, logical_devices):
    from tfaccel.tuning.oracles import HyperbandOracle

    rounds = run(oracle(HyperbandOracle, tmp_path), lambda number: number < 6)
    first = [entry for entry in rounds if entry[0] == 2]
    assert [entry[1] for entry in first].count(0) == 9
    assert [before for _, place, before in first if place == 1] == ["0006", "0007", "0008"]  # all that have a score
    assert [place for _, place, _ in first].count(2) > 0
    assert run(oracle(HyperbandOracle, tmp_path / "all"), lambda number: True)  # stops even where all fail


def history(**values):
    import keras

    found = keras.callbacks.History()
    found.history = values
    return found


def test_all_that_keras_tuner_takes_from_a_fit_is_taken(logical_devices):
    from tfaccel.tuning import own_training

    both = Objective((("val_loss", "min"), ("model_bytes", "min")))
    epochs = history(loss=[3.0, 2.0, 1.0], val_loss=[2.0, 1.0, 4.0], val_mae=[1.0])
    assert own_training.own_fit_metrics(epochs, LOSS) == {"loss": 2.0, "val_loss": 1.0}
    assert own_training.own_fit_metrics(0.5, LOSS) == {"val_loss": 0.5}
    assert own_training.own_fit_metrics({"val_loss": 1, "a": 2}, LOSS) == {"val_loss": 1.0, "a": 2.0}
    assert own_training.own_fit_metrics([epochs, epochs], LOSS) == {"loss": 2.0, "val_loss": 1.0}
    sized = own_training.own_fit_metrics(epochs, both, {"model_bytes": 10.0})
    assert sized == {"loss": 2.0, "val_loss": 1.0, "model_bytes": 10.0}
    assert doctest.testmod(importlib.import_module("tfaccel.tuning.own_training")).failed == 0


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda: None, "must return a History, .* Received: NoneType"),
        (lambda: True, "Received: bool"),
        (lambda: {"loss": 1.0}, "must return the objective 'val_loss'. It returned: loss"),
        (lambda: history(loss=[1.0]), "It returned: loss"),
        (lambda: history(), "It returned: nothing"),
        (lambda: types.SimpleNamespace(), "Received: SimpleNamespace"),
    ],
)
def test_what_a_fit_cannot_return_is_said(logical_devices, returned, message):
    from tfaccel.tuning.own_training import own_fit_metrics

    with pytest.raises(SearchError, match=message):
        own_fit_metrics(returned(), LOSS)


def test_a_trial_trains_as_long_as_all_its_epochs_but_the_first_do(logical_devices, monkeypatch):
    from tfaccel.tuning import trial_callbacks

    report = trial_callbacks.TrialReport(LOSS, {})
    assert report.train_seconds is None
    for now in (7.0, 8.0, 10.0):
        monkeypatch.setattr(trial_callbacks.time, "perf_counter", lambda now=now: now)
        report.on_epoch_end(0, {"val_loss": 1.0})
    assert report.train_seconds == 4.5
