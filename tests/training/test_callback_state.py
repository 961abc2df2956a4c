"""Files that callbacks write, when a run continues from a checkpoint: as if it had never been interrupted."""

import copy
import json

import keras
import numpy as np
import pytest

from tfaccel.training.private.private_api import PROFILER_FLAGS
from tfaccel.training.run.checkpoint import callback_states, cut_csv_files, restore_callbacks

pytestmark = pytest.mark.usefixtures("logical_devices")

EARLY, LATE = {"loss": 0.5, "zeta": 1.0}, {"loss": 0.25, "val_loss": 0.5, "val_zeta": 0.1, "zeta": 2.0}


@pytest.fixture
def logger():
    made = []

    def make(path, **options):
        made.append(keras.callbacks.CSVLogger(str(path), **options))
        return made[-1]

    yield make
    for callback in made:
        callback.on_train_end()


def begun(callback, states=None):
    if states is not None:
        cut_csv_files([callback], states)
    callback.on_train_begin()
    if states is not None:
        restore_callbacks([callback], states, {})
    return callback


def states_of(callback):
    return copy.deepcopy(json.loads(json.dumps(callback_states([callback])[0])))


@pytest.mark.parametrize("append", [False, True])
def test_rows_after_the_checkpoint_are_written_once(tmp_path, logger, append):
    """The columns are those of the first epoch, which has no validation; "zeta" sorts after "val_loss"."""
    path, expected = tmp_path / "log.csv", tmp_path / "expected.csv"
    for file in (path, expected):
        if append:
            file.write_text("what was there\n")
    whole = begun(logger(expected, append=append))
    stopped = begun(logger(path, append=append))
    for one in (whole, stopped):
        one.on_epoch_end(0, EARLY)
    states = states_of(stopped)
    whole.on_epoch_end(1, LATE)
    stopped.on_epoch_end(1, LATE)  # killed here
    again = begun(logger(path, append=append), states)
    assert again.append == append
    again.on_epoch_end(1, LATE)
    assert path.read_text() == expected.read_text()
    assert [one["csv"] for one in states_of(again)] == [one["csv"] for one in states_of(whole)]
    begun(logger(path, append=append), states_of(again))
    assert path.read_text() == expected.read_text()


def test_lost_rows_are_named(tmp_path, logger, caplog):
    path = tmp_path / "log.csv"
    stopped = begun(logger(path))
    stopped.on_epoch_end(0, EARLY)
    states = states_of(stopped)
    stopped.on_train_end()
    path.unlink()
    again = begun(logger(path), states)
    again.on_epoch_end(1, EARLY)
    again.on_train_end()
    assert path.read_text().splitlines() == ["epoch,loss,zeta,val_loss,val_zeta", "1,0.5,1.0,NA,NA"]
    assert f"{path} lacks rows that CSVLogger had written when the checkpoint was saved." in caplog.text


def test_profiler_that_ended_with_its_process_is_not_taken_as_running():
    stopped, again = (keras.callbacks.TensorBoard("logs", profile_batch=(1, 3)) for _ in range(2))
    began = callback_states([again])[0]
    running = dict.fromkeys(PROFILER_FLAGS, True)
    vars(stopped).update(running)
    restore_callbacks([again], callback_states([stopped])[0], {})
    assert callback_states([again])[0] == began
    assert {name: vars(again)[name] for name in running} == dict.fromkeys(running, False)


def test_callbacks_without_a_state_and_states_without_a_callback_are_named(caplog):
    early = keras.callbacks.EarlyStopping()
    early.best, early.best_weights = np.float32(0.25), [np.ones(3, "float32")]
    states, arrays = callback_states([early, keras.callbacks.TerminateOnNaN()])
    found = [keras.callbacks.History(), keras.callbacks.EarlyStopping()]
    restore_callbacks(found, states, arrays)
    assert found[1].best == 0.25
    assert found[1].best_weights[0].tolist() == [1.0] * 3
    assert [record.message for record in caplog.records] == [
        "The callback History is not in the checkpoint, so it begins anew.",
        "The checkpoint has the state of callbacks that are not there now: TerminateOnNaN.",
    ]
