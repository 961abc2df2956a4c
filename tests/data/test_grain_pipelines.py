"""Grain pipelines: the losses of `Model.fit`, and runs that continue where they were stopped, to the last bit."""

import gc
import itertools
import logging
import re

import grain_pipelines
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfaccel
from tfaccel.data.feeds import IteratorFeed
from tfaccel.data.given_data import given_data
from tfaccel.errors import DataError

pytestmark = [
    pytest.mark.usefixtures("logical_devices"),
    # Keras has no length of a Grain pipeline.
    pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning"),
]
PIPELINES, READ_AGAIN, INFINITE = (getattr(grain_pipelines, name) for name in ("PIPELINES", "READ_AGAIN", "INFINITE"))
KINDS = [
    pytest.param(name, marks=[] if name in ("map, repeated", "iter", "loader") else pytest.mark.slow)
    for name in PIPELINES
]
INFINITE_KINDS = ["iter", *(pytest.param(name, marks=pytest.mark.slow) for name in ("map", "loader"))]
NUM_EPOCHS = 3


class Stopped(BaseException):
    pass


class Stop(keras.callbacks.Callback):
    """Interrupts training before a step, counted from 0 over all epochs."""

    def __init__(self, step):
        super().__init__()
        self.left = step

    def on_train_batch_begin(self, batch, logs=None):
        if self.left == 0:
            raise Stopped
        self.left -= 1


def build_model(dropout=0.0):
    random = [keras.layers.Dropout(dropout, seed=1)] if dropout else []
    layers = [keras.layers.Dense(6, activation="tanh"), *random, keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("adam" if dropout else "sgd", "mse", weighted_metrics=["mae"])
    return model


def of_known_length(pipeline):
    """The same batches for `Model.fit`, which counts a step too many in each epoch of unknown length."""
    batches = list(pipeline)
    specs = tuple(tf.TensorSpec([None, *part.shape[1:]], part.dtype) for part in batches[0])
    dataset = tf.data.Dataset.from_generator(lambda: batches, output_signature=specs)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))


def fitted(fit, data, *, num_replicas=1, dropout=0.0, **options):
    keras.utils.set_random_seed(0)
    devices = [f"CPU:{number}" for number in range(num_replicas)]
    strategy = tf.distribute.MirroredStrategy(devices) if num_replicas > 1 else tf.distribute.get_strategy()
    with strategy.scope():
        model = build_model(dropout)
    history = fit(model, data, **{"epochs": NUM_EPOCHS, "verbose": 0, "shuffle": False, **options}).history
    return history, [np.asarray(weight) for weight in model.weights]


def trained(folder, data, *, dropout=0.0, **options):
    keras.utils.set_random_seed(0)
    options = {"strategy": "none", "epochs": NUM_EPOCHS, "checkpoint_interval": 2, "verbose": 0, **options}
    model = build_model(dropout)
    history = tfaccel.train(model, data, run_dir=folder, **options).history
    return history, [np.asarray(weight) for weight in model.weights]


def of_keras(model, data, **options):
    history = model.fit(data, **options)
    gc.collect()  # a cycle of Keras's holds the iterator, whose threads would run on
    return history


def assert_close(found, expected):
    assert sorted(found[0]) == sorted(expected[0])
    for name, values in expected[0].items():
        np.testing.assert_allclose(found[0][name], values, rtol=1e-5)


def assert_equal(found, expected):
    assert found[0] == expected[0]
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", KINDS)
def test_losses_are_those_of_keras(name, tmp_path):
    make = PIPELINES[name]
    expected = fitted(of_keras, of_known_length(make()), validation_data=of_known_length(make()))
    for num_replicas in (1, 2):
        assert_close(fitted(tfaccel.fit, make(), num_replicas=num_replicas, validation_data=make()), expected)
    chosen = {"strategy": "mirrored", "devices": ("CPU:0", "CPU:1")} if name == "iter" else {}
    assert_close(trained(tmp_path, make(), validation_data=make(), **chosen), expected)


@pytest.mark.parametrize("name", INFINITE_KINDS)
def test_parts_of_an_infinite_pipeline_are_those_of_keras(name):
    expected = fitted(of_keras, INFINITE[name](), steps_per_epoch=4)
    for num_replicas in (1, 2):
        assert_close(fitted(tfaccel.fit, INFINITE[name](), num_replicas=num_replicas, steps_per_epoch=4), expected)


def test_without_steps_an_infinite_pipeline_ends_when_a_callback_stops_it_as_in_keras():
    def losses(fit):
        def stop(batch, logs):
            callback.model.stop_training = batch == 10

        callback = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
        return fitted(fit, INFINITE["map"](), callbacks=[callback], epochs=1)

    assert_close(losses(tfaccel.fit), losses(of_keras))


def interrupted(run, folder, make, steps, **options):
    for step in steps:
        with pytest.raises(Stopped):
            run(folder, make(), callbacks=[Stop(step)], **options)
    return run(folder, make(), **options)


def resumed_fit(folder, data, callbacks=(), mode="exact", **options):
    resume = tfaccel.Resume(folder, save_freq=2, data=mode)
    return fitted(tfaccel.fit, data, dropout=0.3, callbacks=[*callbacks, resume], **options)


def resumed_train(folder, data, **options):
    return trained(folder, data, dropout=0.3, resume="auto", **options)


@pytest.mark.parametrize("run", [resumed_fit, resumed_train])
@pytest.mark.parametrize("name", KINDS)
def test_a_run_continues_with_the_state_of_the_pipeline(name, run, tmp_path, caplog):
    expected = run(tmp_path / "whole", PIPELINES[name]())
    with caplog.at_level(logging.INFO, "tfaccel"):
        found = interrupted(run, tmp_path / "stopped", PIPELINES[name], (3, 6))
    assert_equal(found, expected)
    assert "again" not in caplog.text


@pytest.mark.parametrize("name", INFINITE_KINDS)
def test_fit_continues_within_a_pass_that_several_epochs_share(name, tmp_path, caplog):
    expected = resumed_fit(tmp_path / "whole", INFINITE[name](), steps_per_epoch=4)
    with caplog.at_level(logging.INFO, "tfaccel"):
        found = interrupted(resumed_fit, tmp_path / "stopped", INFINITE[name], (3, 5), steps_per_epoch=4)
    assert_equal(found, expected)
    assert "again" not in caplog.text


@pytest.mark.parametrize(
    ("name", "said"),
    [("unnamed source", "Grain: DataSource in checkpoint does not match"), ("without state", "must yield the same")],
)
def test_without_a_state_that_fits_batches_are_read_again(name, said, tmp_path, caplog):
    expected = resumed_train(tmp_path / "whole", READ_AGAIN[name]())
    with caplog.at_level(logging.INFO, "tfaccel"):
        found = interrupted(resumed_train, tmp_path / "stopped", READ_AGAIN[name], (3,))
    assert_equal(found, expected)
    assert said in caplog.text
    assert "Read 2 batches of the epoch again" in caplog.text


def test_resume_asks_for_a_state(tmp_path):
    with pytest.raises(DataError, match=r"The iterator of x \(WithoutState\) has no state.*data='replay'"):
        resumed_fit(tmp_path / "exact", READ_AGAIN["without state"]())
    expected = resumed_fit(tmp_path / "whole", READ_AGAIN["without state"](), mode="replay")
    found = interrupted(resumed_fit, tmp_path / "stopped", READ_AGAIN["without state"], (3,), mode="replay")
    assert_equal(found, expected)


def test_another_pipeline_is_refused(tmp_path):
    with pytest.raises(Stopped):
        resumed_train(tmp_path, PIPELINES["map"](), callbacks=[Stop(3)])
    other = grain_pipelines.rows().batch(grain_pipelines.BATCH)
    with pytest.raises(tfaccel.errors.RunDirError, match=r"holds another run: options\.train_data is"):
        resumed_train(tmp_path, other)
    same_begin = PIPELINES["map"]().map_with_index(lambda index, batch: (batch[0] + (index == 2), batch[1]))
    with pytest.raises(DataError, match="the batch after step 2 of the epoch differs"):
        resumed_train(tmp_path, same_begin)


@pytest.mark.parametrize("name", grain_pipelines.REFUSED)
def test_what_is_no_epoch_of_batches_is_refused(name):
    make, message = grain_pipelines.REFUSED[name]
    with pytest.raises(DataError, match=re.escape(message)):
        given_data(make())


def test_targets_and_other_batch_sizes_are_refused(tmp_path):
    with pytest.raises(DataError, match="A Grain pipeline yields the targets and sample weights itself"):
        given_data(PIPELINES["map"](), grain_pipelines.Y)
    with pytest.raises(
        tfaccel.errors.WorkloadError, match=r"The Grain pipeline has batches of 8 rows\. Received: batch"
    ):
        trained(tmp_path, PIPELINES["map"](), batch_size=16)


def test_states_of_used_batches_are_forgotten():
    dataset = given_data(PIPELINES["map, repeated"]())(8, seed=0, epoch=0).prefetch(2)
    feed = IteratorFeed(dataset)
    expected = list(itertools.islice(PIPELINES["map, repeated"](), 6, None))
    for _ in range(6):
        feed.drop()
    assert min(feed._pass._states) == 6
    state = feed.state()
    again = IteratorFeed(given_data(PIPELINES["map, repeated"]())(8, seed=0, epoch=0), state=state, num_used=6)
    np.testing.assert_array_equal(again.peek()[0], expected[0][0])
    assert again.state()["grain"].tobytes() == state["grain"].tobytes()
