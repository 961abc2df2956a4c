"""What callbacks remember and write, when a run continues from a checkpoint: as if it had never been interrupted."""

import collections
import copy
import functools
import json
import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from replica_models import X, Y, scope_of

from tfaccel.training.fit import fit
from tfaccel.training.private.private_api import PROFILER_FLAGS
from tfaccel.training.run.python_state import CallbackStates, cut_csv_files
from tfaccel.training.run.resume import Resume

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
        CallbackStates([callback]).restore(states, {})
    return callback


def states_of(callback):
    return copy.deepcopy(json.loads(json.dumps(CallbackStates([callback]).read()[0])))


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
    began = CallbackStates([again]).read()[0]
    running = dict.fromkeys(PROFILER_FLAGS, True)
    vars(stopped).update(running)
    CallbackStates([again]).restore(CallbackStates([stopped]).read()[0], {})
    assert CallbackStates([again]).read()[0] == began
    assert {name: vars(again)[name] for name in running} == dict.fromkeys(running, False)


def test_callbacks_without_a_state_and_states_without_a_callback_are_named(caplog):
    early = keras.callbacks.EarlyStopping()
    early.best, early.best_weights = np.float32(0.25), [np.ones(3, "float32")]
    states, arrays = CallbackStates([early, keras.callbacks.TerminateOnNaN()]).read()
    found = [keras.callbacks.History(), keras.callbacks.EarlyStopping()]
    CallbackStates(found).restore(states, arrays)
    assert found[1].best == 0.25
    assert found[1].best_weights[0].tolist() == [1.0] * 3
    assert [record.message for record in caplog.records] == [
        "The callback History is not in the checkpoint, so it begins anew.",
        "The checkpoint has the state of callbacks that are not there now: TerminateOnNaN.",
    ]


class Tracker:
    """What a script may keep beside its callbacks."""

    def __init__(self):
        self.num_epochs, self.losses = 0, []

    def step(self, epoch, logs):
        self.num_epochs += 1
        self.losses.append(logs["loss"])
        set_rate(self.num_epochs * sum(self.losses))


def set_rate(number):
    holder["model"].optimizer.learning_rate.assign(0.01 / (1.0 + float(number)))


holder = {}
number_of_epochs = 0


def nonlocal_number():
    number = 0.0

    def step(epoch, logs):
        nonlocal number
        number += 0.5
        set_rate(number)

    return keras.callbacks.LambdaCallback(on_epoch_end=step)


def global_number():
    def step(epoch, logs):
        global number_of_epochs
        number_of_epochs += 1
        set_rate(number_of_epochs)

    return keras.callbacks.LambdaCallback(on_epoch_begin=step)


def shared_dictionary():
    state = {"losses": [], "best": np.float32(9.0)}

    def step(epoch, logs):
        state["losses"].append(logs["loss"])
        state["best"] = min(state["best"], np.float32(logs["loss"]))
        set_rate(len(state["losses"]) * state["best"])

    return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: step(epoch, logs))


def bound_method():
    return keras.callbacks.LambdaCallback(on_epoch_end=Tracker().step)


def partial_function():
    def step(losses, epoch, logs):
        losses.append(logs["loss"])
        set_rate(sum(losses))

    return keras.callbacks.LambdaCallback(on_epoch_end=functools.partial(step, collections.deque(maxlen=2)))


def schedule_with_a_memory():
    seen = [0.0]

    def schedule(epoch, rate):
        seen[0] += rate
        return 0.01 / (1.0 + seen[0])

    return keras.callbacks.LearningRateScheduler(schedule)


class Averages(keras.callbacks.Callback):
    """Moves the weights toward averages that it keeps as arrays, variables and a model, and adds noise of its own."""

    def __init__(self):
        super().__init__()
        self.arrays, self.variables, self.copy = {}, None, None
        self.noise, self.python_noise = np.random.default_rng(0), random.Random(0)
        self.mean = keras.metrics.Mean()

    def on_train_begin(self, logs=None):
        self.copy = keras.models.clone_model(self.model)

    def on_epoch_end(self, epoch, logs=None):
        if self.variables is None:
            self.variables = [tf.Variable(one) for one in self.model.weights]
        self.mean.update_state(logs["loss"])
        for one, in_copy, variable in zip(self.model.weights, self.copy.weights, self.variables, strict=True):
            average = self.arrays.setdefault(one.path, np.zeros(one.shape, "float32"))
            average += 0.1 * one.numpy()
            in_copy.assign(0.9 * in_copy + 0.1 * one)
            variable.assign(0.9 * variable + 0.1 * one)
            one.assign(one + 0.1 * average + 0.1 * in_copy + 0.1 * variable)
        set_rate(self.noise.random() + self.python_noise.random() + self.mean.result())


WAYS = (
    nonlocal_number,
    global_number,
    shared_dictionary,
    bound_method,
    partial_function,
    schedule_with_a_memory,
    Averages,
)


@pytest.mark.parametrize(
    ("make", "num_replicas"), [*((make, 0) for make in WAYS), pytest.param(Averages, 2, marks=pytest.mark.slow)]
)
def test_what_a_callback_remembers_is_restored(make, num_replicas, tmp_path):
    def script(folder, *, stops):
        global number_of_epochs
        number_of_epochs = 0
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        with scope_of(num_replicas):
            holder["model"] = model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.01, momentum=0.5), "mse")
        stop = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: 1 / (3 - epoch) if stops else None)
        history = fit(model, X, Y, epochs=5, batch_size=8, verbose=0, callbacks=[make(), stop, Resume(folder)])
        return history.history["loss"], [one.tolist() for one in model.get_weights()]

    wanted = script(tmp_path / "whole", stops=False)
    with pytest.raises(ZeroDivisionError):
        script(tmp_path / "run", stops=True)
    assert script(tmp_path / "run", stops=False) == wanted


def test_data_that_a_callback_reads_are_not_in_the_checkpoint():
    large = np.zeros((1000, 1000), "float32")
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: large.sum())
    states = CallbackStates([callback])
    states.begin()
    assert states.read()[1] == {}
    large[500] += 1
    assert [array is large for array in states.read()[1].values()] == [True]
