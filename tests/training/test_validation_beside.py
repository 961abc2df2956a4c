"""Validation beside training ends as validation between epochs does, whatever callbacks do with the scores."""

import itertools
import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfaccel
from tfaccel.errors import PlanError, WorkloadError

HERE = Path(__file__).parent
X, Y = np.ones((32, 4), "float32"), np.ones((32, 1), "float32")
layers = keras.layers


@pytest.fixture(scope="module")
def outcomes(run_python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("beside")
    return json.loads(run_python("validation_beside_program", str(folder), cwd=HERE, timeout_seconds=500).stdout)


@pytest.mark.parametrize("case", ["usual", "stopping", "checkpoints", "plateau"])
def test_all_is_as_between_epochs(case, outcomes):
    between, beside = outcomes[case]
    assert beside == between
    assert len(between["history"]["val_loss"]) == {"stopping": 4}.get(case, 6)


def test_steps_are_repeated_only_after_a_callback_has_changed_something(outcomes):
    rates = outcomes["plateau"][0]["history"]["learning_rate"]
    lowered = sum(after < 0.9 * before for before, after in itertools.pairwise(rates))
    assert 0 < outcomes["repeated"] <= lowered + 1


def test_several_replicas_get_the_scores_of_one_device(outcomes):
    between, beside = outcomes["replicas"]
    assert beside["weights"] == between["weights"]
    for name, values in between["history"].items():
        np.testing.assert_allclose(beside["history"][name], values, rtol=1e-5)


def test_a_run_that_is_stopped_meanwhile_goes_on_exactly(outcomes):
    whole, stopped, resumed = outcomes["stopped"]
    assert "Training was stopped by SIGTERM after step 60;" in stopped  # the end of the epoch that is validated
    assert resumed == whole


def test_a_loss_that_is_not_finite_meanwhile_leaves_the_score_and_the_checkpoint(outcomes):
    between, beside = outcomes["not finite"]
    assert beside == between
    assert len(beside[1]) == 2 and "step 2 of epoch 3" in beside[0]


class EachBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


class CountsEvaluations(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)
        self.seen = self.add_weight(shape=(), trainable=False, initializer="zeros", name="seen")

    def call(self, x):
        return self.dense(x)

    def test_step(self, data):
        self.seen.assign_add(1.0)
        return super().test_step(data)


class Scaled(layers.Layer):
    def __init__(self):
        super().__init__()
        outside = tf.Variable(1.0, name="outside", trainable=False)
        self.get_scale = lambda: outside

    def call(self, x):
        return x * self.get_scale()


def make_model():
    return keras.Sequential([keras.Input((4,)), layers.Dense(1)])


def make_shared():
    return keras.Sequential([keras.Input((4,)), SHARED])


def make_stateful():
    return keras.Sequential([keras.Input(batch_shape=(8, 4)), layers.Reshape((2, 2)), layers.LSTM(1, stateful=True)])


def make_reading():
    return keras.Sequential([keras.Input((4,)), layers.Dense(1), Scaled()])


SHARED = layers.Dense(1)
REFUSED = [
    (make_model, {"validate_on": "gpu"}, WorkloadError, 'validate_on must be a device, such as "GPU:1" or "CPU:0"'),
    (make_model, {"validation_data": None}, WorkloadError, "needs validation data, and workload .* has none"),
    (make_model, {"max_seconds": 60.0}, WorkloadError, "validate_on and max_seconds cannot be combined"),
    (make_model, {"validate_on": "CPU:9"}, PlanError, "validate_on is CPU:9, but this process has CPU:0"),
    (
        make_model,
        {"callbacks": [EachBatch()]},
        WorkloadError,
        "EachBatch, whose on_train_batch_end would not be called",
    ),
    (CountsEvaluations, {}, WorkloadError, "An evaluation changes .*seen, with which training would go on, so"),
    (make_shared, {}, WorkloadError, "one that shares its variables, or has others, so it cannot be validated"),
    (make_stateful, {}, WorkloadError, "The model's layers keep states from batch to batch, so it cannot"),
    (make_reading, {}, WorkloadError, "An evaluation reads outside:0, which is no part of the model"),
]


@pytest.mark.parametrize(("model", "options", "error", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_validated_beside_training_is_refused(model, options, error, message, tmp_path, logical_devices):
    given = {"validation_data": (X, Y), "validate_on": "CPU:0", "epochs": 3, **options}
    with pytest.raises(error, match=message):
        tfaccel.train(
            model, X, Y, optimizer="sgd", loss="mse", batch_size=8, run_dir=tmp_path / "run", verbose=0, **given
        )


def test_a_plan_for_several_workers_is_refused(tmp_path, logical_devices):
    plan = tfaccel.Plan(strategy="multi_worker_mirrored", devices=("CPU:0",), num_workers=2, global_batch_size=8)
    given = {"validation_data": (X, Y), "optimizer": "sgd", "loss": "mse", "plan": plan, "validate_on": "CPU:0"}
    with pytest.raises(
        PlanError, match=r"validate_on needs a plan for one process, on CPUs or GPUs. Received: strategy="
    ):
        tfaccel.train(make_model, X, Y, run_dir=tmp_path / "run", epochs=2, verbose=0, **given)
