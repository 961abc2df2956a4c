"""The learning-rate range test: its rates, the models and data that it takes, and what it refuses."""

import dataclasses
import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from learning_rate_models import SHORT, X, Y, build_model, linear_model, small_model

import tfaccel
from tfaccel import LearningRateReport, find_learning_rate
from tfaccel.errors import DataError, PlanError, WorkloadError
from tfaccel.options import LearningRateTest
from tfaccel.planning.plan_cache import keep_plan


@pytest.mark.parametrize(("spacing", "steps"), [("exponential", 2), ("linear", None)])
def test_each_step_has_its_rate(logical_devices, spacing, steps):
    schedule = keras.optimizers.schedules.PolynomialDecay(0.5, 100, 0.0)
    optimizer = keras.optimizers.SGD(schedule, gradient_accumulation_steps=steps)
    model = linear_model(optimizer, loss=lambda y, prediction: tf.reduce_mean(prediction, axis=-1))
    bias, seen = model.layers[0].bias, []
    test = LearningRateTest(num_steps=20, spacing=spacing, min_learning_rate=1e-3, divergence_factor=None)
    report = find_learning_rate(model, X, Y, test=test, on_step=lambda *step: seen.append((*step, float(bias[0]))))
    rates = 1e-3 * 1e4 ** (np.arange(20) / 19) if spacing == "exponential" else np.linspace(1e-3, 10.0, 20)
    np.testing.assert_allclose(report.learning_rates, rates, rtol=1e-6)
    assert [step[0] for step in seen] == list(range(1, 21))
    np.testing.assert_allclose([step[1] for step in seen], rates, rtol=1e-6)
    np.testing.assert_allclose([step[3] for step in seen], -np.cumsum(rates), rtol=1e-5)  # the gradient is 1
    assert [step[2] for step in seen] == list(report.smoothed_losses)
    assert report.learning_rate == pytest.approx(0.5)
    assert report.global_batch_size == 32 * (steps or 1)
    assert report.stopped_because == "All 20 rates were tested."
    assert float(optimizer.learning_rate) == pytest.approx(0.5)


def test_a_new_model_of_a_function_or_workload_is_trained(logical_devices):
    plan = tfaccel.Plan(strategy="none", devices=("CPU:0",), global_batch_size=16)
    options = {"optimizer": keras.optimizers.SGD(0.01), "loss": "mse", "batch_size": 16}
    build = small_model
    report = find_learning_rate(build, X, Y, plan=plan, test=SHORT, **options)
    again = find_learning_rate(tfaccel.Workload.of(build, X, Y, **options), plan=plan, test=SHORT)
    assert report.losses == again.losses
    assert (report.optimizer, report.global_batch_size) == ("SGD", 16)
    seeded = dataclasses.replace(SHORT, seed=1)
    assert find_learning_rate(build, X, Y, plan=plan, test=seeded, **options).losses != report.losses
    assert LearningRateReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_a_measured_plan_is_used_without_what_needs_a_new_process(logical_devices, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path))
    work = tfaccel.Workload.of(build_model, X, Y, optimizer="sgd", loss="mse", batch_size=32)
    machine = tfaccel.detect_hardware()
    plan = dataclasses.replace(tfaccel.default_plan(machine, work), memory_allocator="glibc_huge_pages")
    keep_plan(machine, work, {}, plan, speedup=2.0, report={})
    assert find_learning_rate(work, test=SHORT).learning_rates
    assert "The measured plan is used without its memory_allocator." in caplog.text
    keep_plan(machine, work, {"memory_allocator": "glibc_huge_pages"}, plan, speedup=2.0, report={})
    with pytest.raises(PlanError, match="this process started without it"):
        find_learning_rate(work, test=SHORT, memory_allocator="glibc_huge_pages")


def test_compile_arguments_are_for_a_copy(logical_devices):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    before = model.get_weights()
    report = find_learning_rate(model, X, Y, test=SHORT, optimizer="adam", loss="mse")
    assert report.optimizer == "Adam"
    assert not model.compiled
    model.compile("sgd", "mse")
    other = find_learning_rate(model, X, Y, test=SHORT, optimizer="adam", shuffle=False)
    assert (other.optimizer, type(model.optimizer).__name__) == ("Adam", "SGD")
    for one, value in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, value)


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[16 * index : 16 * (index + 1)], Y[16 * index : 16 * (index + 1)]


def test_datasets_are_repeated_and_generators_refused(logical_devices):
    model = linear_model()
    by_rows = find_learning_rate(model, X, Y, batch_size=16, shuffle=False, test=SHORT)
    for data in (tf.data.Dataset.from_tensor_slices((X, Y)).batch(16), Rows()):
        options = {"shuffle": False} if isinstance(data, Rows) else {}
        assert find_learning_rate(model, data, test=SHORT, **options).losses == pytest.approx(by_rows.losses, rel=1e-6)
    with pytest.raises(DataError, match="A generator can be read only once"):
        find_learning_rate(model, ((X, Y) for _ in range(100)), test=SHORT)
    with pytest.raises(DataError, match="The data contain no batches"):
        find_learning_rate(model, tf.data.Dataset.from_tensor_slices((X, Y)).take(0).batch(16), test=SHORT)


class Preparing(keras.Model):
    """Prepares its data in `fit`, as KerasHub's tasks do."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def fit(self, x=None, y=None, **options):
        return super().fit(x=x * 2.0, y=y, **options)


class OwnStep(Preparing):
    def train_step(self, data):
        return {"other": tf.constant(1.0)}


class OwnLoop(Preparing):
    def make_train_function(self, force=False):
        return super().make_train_function(force)


def test_a_model_that_prepares_its_data_does(logical_devices):
    keras.utils.set_random_seed(0)
    model = Preparing()
    model.compile("sgd", "mse")
    report = find_learning_rate(model, X, Y, shuffle=False, test=SHORT)
    model.evaluate(X[:32] * 2.0, Y[:32], verbose=0)
    assert report.losses[0] == pytest.approx(float(model.evaluate(X[:32] * 2.0, Y[:32], verbose=0)), rel=1e-5)


def parts():
    whole = keras.optimizers.OptimizerMap(keras.optimizers.SGD(), {".*bias": keras.optimizers.Adam()})
    return keras.optimizers.MultiOptimizer(whole)


def own(kind):
    model = kind()
    model.compile("sgd", "mse")
    return model


REFUSED = {
    "no optimizer": (lambda: linear_model(None), "has no optimizer, so there is no learning rate"),
    "several rates": (lambda: linear_model(parts()), "Sequential has several: Adam, SGD. Search their rates"),
    "not compiled": (build_model, r"not compiled\. Call `model\.compile\(\.\.\.\)`, or give its arguments"),
    "no loss": (lambda: own(OwnStep), r"OwnStep\.train_step returns no log named 'loss'.* Received: other"),
    "own loop": (lambda: own(OwnLoop), "OwnLoop overrides make_train_function"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_models_that_cannot_be_tested_are_refused(logical_devices, case):
    model, message = REFUSED[case]
    with pytest.raises(WorkloadError, match=message):
        find_learning_rate(model(), X, Y, test=SHORT)


def test_wrong_calls_are_refused(logical_devices):
    model = linear_model()
    plan = tfaccel.Plan(strategy="none", devices=("CPU:0",), global_batch_size=16)
    workers = tfaccel.Plan(strategy="multi_worker_mirrored", devices=("CPU:0",), num_workers=2, global_batch_size=16)
    work = tfaccel.Workload.of(build_model, X, Y, optimizer="sgd", loss="mse")
    with pytest.raises(WorkloadError, match="is tested on its data"):
        find_learning_rate(model)
    with pytest.raises(PlanError, match="A plan is for a model that is built for the test"):
        find_learning_rate(model, X, Y, plan=plan)
    with pytest.raises(
        WorkloadError, match=r"There is no argument 'batchsize' for a Keras model\. Did you mean 'batch_s"
    ):
        find_learning_rate(model, X, Y, batchsize=3)
    with pytest.raises(PlanError, match=r"Give a plan, or fields of one\. Received both: plan, jit_compile"):
        find_learning_rate(work, plan=plan, jit_compile=True)
    with pytest.raises(PlanError, match=r"runs in one process\. Received: a plan with 2 workers"):
        find_learning_rate(work, plan=workers)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_learning_rate": 0.0}, "above 0 and below `max_learning_rate`. Received: min_learning_rate=0.0"),
        ({"max_learning_rate": math.inf}, "Received: min_learning_rate=1e-07, max_learning_rate=inf."),
        ({"min_learning_rate": 2, "max_learning_rate": 1}, "Received: min_learning_rate=2, max_learning_rate=1."),
        ({"num_steps": 13}, "`num_steps` must be at least 14: 10 skipped first, 1 skipped last"),
        ({"num_steps": 0}, "`num_steps` must be a whole number of at least 1"),
        ({"spacing": "cubic"}, "`spacing` must be one of exponential, linear. Received: spacing='cubic'"),
        ({"smoothing": 1.0}, "`smoothing` must be a number from 0 to below 1"),
        ({"divergence_factor": 1}, "`divergence_factor` must be a number above 1, or None"),
        ({"skip_first": -1}, "`skip_first` must be a whole number of at least 0. Received: skip_first=-1."),
        ({"seed": -1}, "`seed` must be a whole number"),
    ],
)
def test_values_out_of_range_are_refused(options, message):
    with pytest.raises(WorkloadError) as raised:
        LearningRateTest(**options)
    assert message in str(raised.value)
