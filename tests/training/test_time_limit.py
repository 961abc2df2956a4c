"""A run with a limit of time gets as many steps as fit, with its schedule, and equals a run of so many epochs."""

import json
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfaccel
from tfaccel.errors import RunDirError, WorkloadError
from tfaccel.planning.workload import Workload
from tfaccel.training.run.time_limit import Measured, TimeLimit

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
WORKERS = """
import json
import numpy as np
import tfaccel

x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)

def build_model():
    import keras
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])

def compiled(*, num_steps):
    import keras
    return {"optimizer": keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.01, num_steps)), "loss": "mse"}

if __name__ == "__main__":
    result = tfaccel.train(build_model, compiled, x, x[:, :1], batch_size=8, run_dir="run", verbose=0, max_seconds=60,
                           num_workers=2)
    print(json.dumps(result.time_limit))
"""


def build_model():
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((4,)), *layers])


def compiled(*, num_steps):
    schedule = keras.optimizers.schedules.CosineDecay(0.01, num_steps)
    return {"optimizer": keras.optimizers.SGD(schedule, momentum=0.9), "loss": "mse"}


def trained(run_dir, x=X, y=Y, **options):
    given = {"batch_size": 8, "validation_split": 0.25, "verbose": 0, **options}
    return tfaccel.train(build_model, compiled, x, y, run_dir=run_dir, **given)


def weights(run_dir):
    return keras.models.load_model(run_dir / "model.keras").get_weights()


class Slow(keras.callbacks.Callback):
    """Makes every step slow, which the trial does not see: it calls no callbacks of the user."""

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.2)


class Killed(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise RuntimeError("killed")


def test_a_run_with_time_for_all_epochs_is_the_run_without_a_limit(tmp_path):
    whole = trained(tmp_path / "whole", epochs=3)
    with pytest.raises(RuntimeError, match="killed"):
        trained(tmp_path / "run", epochs=3, max_seconds=600, callbacks=[Killed()])
    with pytest.raises(RunDirError, match="max_seconds is 600"):
        trained(tmp_path / "run", epochs=3, max_seconds=300, resume="auto")
    limited = trained(tmp_path / "run", epochs=3, max_seconds=600, resume="auto")
    assert limited.history == whole.history and limited.final == whole.final
    for one, other in zip(weights(tmp_path / "run"), weights(tmp_path / "whole"), strict=True):
        np.testing.assert_array_equal(one, other)
    told = {"max_seconds": 600.0, "epochs": 3, "last_steps": None, "steps": 18, "ended_at": None, "next": None}
    assert limited.time_limit == told and whole.time_limit is None
    assert json.loads((tmp_path / "run/result.json").read_text())["time_limit"] == told
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert {name: config[name] for name in ("max_seconds", "max_epochs", "epochs")} == {
        "max_seconds": 600.0,
        "max_epochs": 3,
        "epochs": 3,
    }


@pytest.mark.slow
def test_the_schedule_ends_with_the_last_step_that_fits(tmp_path, capfd):
    limited = trained(tmp_path / "run", max_seconds=20, verbose="progress")
    told = limited.time_limit
    model = keras.models.load_model(tmp_path / "run/model.keras")
    last_steps = told["last_steps"] or 6
    assert told["steps"] == (told["epochs"] - 1) * 6 + last_steps
    trained_steps = told["steps"] if told["ended_at"] is None else told["ended_at"]
    assert int(model.optimizer.iterations.numpy()) == trained_steps
    assert model.optimizer._learning_rate.decay_steps == told["steps"]
    assert f"max_seconds=20: {told['epochs']} epochs fit" in capfd.readouterr().err


@pytest.mark.slow
def test_the_clock_ends_a_run_that_became_slower(tmp_path):
    limited = trained(tmp_path / "run", max_seconds=20, callbacks=[Slow()], epochs=500)
    told, ended_at = limited.time_limit, limited.time_limit["ended_at"]
    assert told["epochs"] > 20 and ended_at < told["steps"]
    assert told["next"] == f"batch {ended_at + 1:,} of {told['steps']:,}, with which the learning rate schedule ends"
    assert (tmp_path / "run/checkpoints" / f"step_{ended_at:010d}").exists()
    model = keras.models.load_model(tmp_path / "run/model.keras")
    assert int(model.optimizer.iterations.numpy()) == ended_at
    again = trained(tmp_path / "run", max_seconds=20, epochs=500, resume="auto")  # complete: nothing is trained
    assert again.final == limited.final


def test_a_last_epoch_that_is_not_whole_is_resumed_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(TimeLimit, "fitted", lambda *_, **__: {"epochs": 3, "last_steps": 4})
    whole = trained(tmp_path / "whole", max_seconds=100)
    assert [row["step"] for row in rows(tmp_path / "whole")] == [6, 12, 16]
    with pytest.raises(RuntimeError, match="killed"):
        trained(tmp_path / "run", max_seconds=100, callbacks=[Killed()])
    monkeypatch.undo()
    resumed = trained(tmp_path / "run", max_seconds=100, resume="auto")  # the trial is not repeated
    assert resumed.history == whole.history
    for one, other in zip(weights(tmp_path / "run"), weights(tmp_path / "whole"), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_workers_agree_on_the_length(run_python, tmp_path):
    (tmp_path / "mine.py").write_text(WORKERS)
    child = run_python("mine", fresh=True, cwd=tmp_path)
    told = json.loads(child.stdout)
    assert told["ended_at"] is None and told["steps"] == 8 * (told["epochs"] - 1) + (told["last_steps"] or 8)


def rows(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("seconds", [0, -1, "60", float("inf"), float("nan"), True])
def test_limit_that_is_no_time_is_refused(tmp_path, seconds):
    with pytest.raises(WorkloadError, match=r"`max_seconds` must be a positive number of seconds\. Received: "):
        trained(tmp_path / "run", max_seconds=seconds)
    assert not (tmp_path / "run").exists()


def test_limit_that_allows_no_step_is_refused(tmp_path):
    with pytest.raises(WorkloadError, match=r"max_seconds=0.01 is too short for one step: .* Give more time"):
        trained(tmp_path / "run", max_seconds=0.01)
    assert not (tmp_path / "run").exists()


def test_data_of_unknown_length_are_refused(tmp_path):
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).repeat(10**6).filter(lambda x, y: True)

    def build():
        model = build_model()
        model.compile("sgd", "mse")
        return model

    with pytest.raises(WorkloadError, match=r"needs the number of batches in an epoch, which is not known\. Give the"):
        tfaccel.train(build, batches, max_seconds=20, run_dir=tmp_path / "run", verbose=0)
    assert not (tmp_path / "run").exists()


def measured(**given):
    known = {"start_seconds": 2.0, "step_seconds": 0.1, "validation_seconds": None, "num_batches": 100}
    return Measured(**{**known, "num_validation_batches": None, **given})


def workload(**given):
    return Workload("made_up", object, dict, print, global_batch_size=8, **given)


def test_length_is_what_fits(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: 1000.0)

    def fitted(seconds, of=None, accumulation_steps=1, max_epochs=None, **given):
        limit = TimeLimit(seconds, 1000.0, max_epochs)
        return tuple(limit.fitted(measured(**given), of or workload(), accumulation_steps=accumulation_steps).values())

    # 3 % and 2 s are kept, and each epoch has 0.05 s for metrics and checkpoints.
    assert fitted(100) == (10, 25)  # 97 - 2 - 2 = 93 s: 9 epochs of 10.05 s, and 25.5 steps less
    assert fitted(100, accumulation_steps=10) == (10, 20)
    assert fitted(10) == (1, 56)
    assert fitted(100, max_epochs=4) == (4, None)
    validated = workload(validation_data=print)
    assert fitted(100, validated, validation_seconds=5.0) == (6, 77)  # 88 s: 5 epochs of 15.05 s, and a part
    assert fitted(100, validated, num_validation_batches=100) == (6, 77)  # half a training step per batch
