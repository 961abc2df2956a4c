"""A run that goes on for more epochs equals one that had them from the start, or is refused by name."""

import json

import keras
import numpy as np
import pytest

import tfaccel
from tfaccel.errors import RunDirError, WorkloadError

pytestmark = pytest.mark.usefixtures("logical_devices")

X = np.random.default_rng(0).normal(size=(48, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def build_model():
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((4,)), *layers])


def trained(run_dir, epochs, *, optimizer="adam", **options):
    compiled = {"optimizer": optimizer, "loss": "mse"}
    return tfaccel.train(
        build_model,
        compiled,
        X,
        Y,
        batch_size=8,
        validation_split=0.25,
        epochs=epochs,
        run_dir=run_dir,
        verbose=0,
        **options,
    )


def weights(run_dir):
    return keras.models.load_model(run_dir / "model.keras").get_weights()


def assert_same(one, other):
    for a, b in zip(weights(one), weights(other), strict=True):
        np.testing.assert_array_equal(a, b)


class Killed(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2:
            raise RuntimeError("killed")


def test_a_complete_run_goes_on_to_the_same_weights(tmp_path):
    whole = trained(tmp_path / "whole", 4)
    trained(tmp_path / "run", 2)
    with pytest.raises(RuntimeError, match="killed"):
        trained(tmp_path / "run", 4, resume="extend", callbacks=[Killed()])
    assert not (tmp_path / "run" / "result.json").exists()
    longer = trained(tmp_path / "run", 4, resume="extend")
    assert longer.history == whole.history and longer.final == whole.final
    assert_same(tmp_path / "run", tmp_path / "whole")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["epochs"] == 4
    again = trained(tmp_path / "run", 4, resume="extend")  # nothing left to do
    assert again.final == whole.final
    trained(tmp_path / "new", 4, resume="extend")
    assert_same(tmp_path / "new", tmp_path / "whole")
    with pytest.raises(RunDirError, match="epochs is 4 there and 3 here"):
        trained(tmp_path / "run", 3, resume="extend")
    with pytest.raises(RunDirError, match=r"epochs is 4 there and 5 here.* To train it longer: resume=\"extend\""):
        trained(tmp_path / "run", 5, resume="auto")


def with_schedule(num_steps):
    return keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, num_steps))


def with_closure(num_steps):
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.weight_decay = 1 / num_steps
    return optimizer


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        (
            with_schedule,
            "optimizer.learning_rate.decay_steps is 10 for the 10 steps that it was begun with, and 20 for",
        ),
        (with_closure, "optimizer.weight_decay is 0.1"),
    ],
)
def test_what_depends_on_the_number_of_steps_is_named(tmp_path, optimizer, name):
    result = trained(tmp_path, 2, optimizer=optimizer)
    with pytest.raises(RunDirError, match=name):
        trained(tmp_path, 4, optimizer=optimizer, resume="extend")
    assert trained(tmp_path, 2, optimizer=optimizer, resume="auto").final == result.final


def rates(run_dir, steps):
    model = keras.models.load_model(run_dir / "model.keras")
    return [float(model.optimizer._learning_rate(step)) for step in steps]


def falling(*, num_steps):
    schedule = keras.optimizers.schedules.PolynomialDecay(0.1, num_steps, 0.0)
    return {"optimizer": keras.optimizers.SGD(schedule), "loss": "mse"}


def falling_run(run_dir, epochs, **options):
    return tfaccel.train(build_model, falling, X, Y, batch_size=8, epochs=epochs, run_dir=run_dir, verbose=0, **options)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("continue", {12: 0.0, 18: 0.0}),
        ("stretch", {12: 0.1 * 12 / 24, 18: 0.1 * 6 / 24}),
        ("new", {12: 0.1, 18: 0.05, 24: 0.0}),
    ],
)
def test_schedule_of_a_longer_run_is_what_was_asked(tmp_path, how, expected):
    falling_run(tmp_path / "run", 2)  # 12 steps
    with pytest.raises(RunDirError, match=r"Others need extend_schedule \(--extend_schedule\): continue, stretch, new"):
        falling_run(tmp_path / "run", 4, resume="extend")
    with pytest.raises(RuntimeError, match="killed"):
        falling_run(tmp_path / "run", 4, resume="extend", extend_schedule=how, callbacks=[Killed()])
    longer = falling_run(tmp_path / "run", 4, resume="auto")
    np.testing.assert_allclose(rates(tmp_path / "run", expected), list(expected.values()), atol=1e-7)
    assert len(longer.history["loss"]) == 4
    falling_run(tmp_path / "other", 2)
    at_once = falling_run(tmp_path / "other", 4, resume="extend", extend_schedule=how)
    assert at_once.history == longer.history
    assert_same(tmp_path / "run", tmp_path / "other")


def test_a_run_is_extended_more_than_once(tmp_path):
    falling_run(tmp_path / "run", 1)
    falling_run(tmp_path / "run", 2, resume="extend", extend_schedule="new")
    with pytest.raises(RunDirError, match=r"was extended with extend_schedule='new'\. Say again what becomes of it"):
        falling_run(tmp_path / "run", 4, resume="extend")
    falling_run(tmp_path / "run", 4, resume="extend", extend_schedule="new")
    np.testing.assert_allclose(rates(tmp_path / "run", [12, 18, 24]), [0.1, 0.05, 0.0], atol=1e-7)
    model = keras.models.load_model(tmp_path / "run/model.keras")
    assert int(model.optimizer.iterations.numpy()) == 24


def test_unknown_schedule_of_a_longer_run_is_refused(tmp_path):
    with pytest.raises(
        WorkloadError, match=r"`extend_schedule` must be one of None, continue, stretch, new\. Received"
    ):
        falling_run(tmp_path / "run", 2, resume="extend", extend_schedule="stretched")
