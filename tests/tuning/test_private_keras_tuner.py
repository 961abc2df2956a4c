"""The private parts of Keras Tuner behind names of tfaccel's own: hooks are called, and what is gone is told."""

import re

import pytest

from tfaccel.errors import VersionError
from tfaccel.tested_versions import installed_version, warn_if_untested

pytestmark = pytest.mark.usefixtures("logical_devices")


def make(kind, folder, **options):
    import keras_tuner

    space = keras_tuner.HyperParameters()
    space.Choice("units", [8, 16, 32])
    oracle = kind(objective=keras_tuner.Objective("val_loss", "min"), hyperparameters=space, seed=1, **options)
    oracle.verbose = 0
    oracle.set_project_dir(str(folder), "tuner")
    return oracle


def open_grid():
    from keras_tuner import oracles

    from tfaccel.tuning.private_keras_tuner import OpenOracle

    class Grid(OpenOracle, oracles.GridSearchOracle):
        calls = ()

        def save_trial(self, trial):
            self.calls += (("saved", trial.trial_id),)
            super().save_trial(trial)

        def record_values(self, trial):
            self.calls += (("recorded", trial.trial_id),)
            super().record_values(trial)

    return Grid


def end(oracle, trial, status="COMPLETED"):
    trial.status = status
    if status == "COMPLETED":
        oracle.update_trial(trial.trial_id, {"val_loss": 1.0})
    oracle.end_trial(trial)


def test_hooks_are_called_and_files_are_where_they_were(tmp_path):
    oracle = make(open_grid(), tmp_path)
    trial = oracle.create_trial("tuner")
    assert oracle.calls == (("recorded", trial.trial_id), ("saved", trial.trial_id))
    assert oracle.state_file == tmp_path / "tuner" / "oracle.json"
    assert oracle.state_file.exists()
    assert (tmp_path / "tuner" / f"trial_{trial.trial_id}" / "trial.json").exists()


def test_waiting_trials_begin_anew_and_are_counted(tmp_path):
    oracle = make(open_grid(), tmp_path)
    first = oracle.create_trial("tuner").trial_id
    assert oracle.num_runs(first) == 0
    end(oracle, oracle.trials[first])
    assert oracle.num_runs(first) == 1
    oracle.set_waiting([first])
    assert oracle.create_trial("tuner").trial_id == first


def test_a_grid_search_finds_its_place(tmp_path):
    from tfaccel.tuning.private_keras_tuner import find_place

    oracle = make(open_grid(), tmp_path)
    end(oracle, oracle.create_trial("tuner"))
    other = make(open_grid(), tmp_path)
    other.reload()
    other.set_waiting([])  # Keras Tuner saves before it knows that the trial has ended
    find_place(other)
    trial = other.create_trial("tuner")
    assert trial.hyperparameters.values == {"units": 16}


@pytest.mark.parametrize("name", ["_save_trial", "_record_values"])
def test_a_missing_part_names_the_versions_that_have_it(tmp_path, monkeypatch, name):
    import keras_tuner

    kind = open_grid()
    monkeypatch.delattr(keras_tuner.Oracle, name)
    text = f"keras-tuner {re.escape(installed_version('keras-tuner'))} has no `{name}`.*pip install 'keras-tuner==1.4"
    with pytest.raises(VersionError, match=text):
        make(kind, tmp_path)


def test_another_version_is_warned_of():
    with pytest.warns(UserWarning, match=r"was tested with keras-tuner 1\.4\.\*; 1\.40\.0 is installed"):
        warn_if_untested("keras-tuner", "1.40.0")
    warn_if_untested.cache_clear()
