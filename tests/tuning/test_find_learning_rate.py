"""The learning-rate range test: its rates, its curve, its suggestion, and a model that is as before."""

import dataclasses
import doctest
import importlib
import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfaccel
from tfaccel import LearningRateReport, LearningRateTest, find_learning_rate
from tfaccel.errors import DataError, PlanError, WorkloadError
from tfaccel.planning.plan_cache import keep_plan
from tfaccel.training.steps.model_parts import variables_of
from tfaccel.tuning.learning_rate_curve import SmoothedLoss, suggestion

X = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
Y = X @ np.array([[1.0], [-2.0], [0.5], [0.0]], "float32")
SHORT = LearningRateTest(num_steps=16, max_learning_rate=0.01, divergence_factor=None)


def build_model():
    layers = [keras.layers.Dense(6), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    return keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1, dtype="float32")])


def small_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


def linear_model(optimizer="sgd", loss="mse"):
    model = small_model()
    model.compile(optimizer, loss)
    return model


# --- The rates ----------------------------------------------------------------------------------------------------


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


# --- The model is as before ---------------------------------------------------------------------------------------


def compiled(strategy, *, optimizer):
    keras.utils.set_random_seed(7)
    policy = "mixed_float16" if strategy is not None else "float32"
    keras.config.set_dtype_policy(policy)
    try:
        with (strategy or tf.distribute.get_strategy()).scope():
            model = build_model()
            model.compile(optimizer(), "mse", metrics=["mae"])
    finally:
        keras.config.set_dtype_policy("float32")
    return model


def state(model):
    """Every value that training changes, on each replica."""
    return values(model, variables_of(model))


def values(model, variables):
    local = [model.distribute_strategy.experimental_local_results(variable.value) for variable in variables]
    return [part.numpy().tobytes() for parts in local for part in parts]


def falling():
    return keras.optimizers.schedules.PolynomialDecay(0.1, 100, 0.0)


KINDS = {
    "number": (False, lambda: keras.optimizers.Adam(0.01)),
    "schedule": (False, lambda: keras.optimizers.SGD(falling(), momentum=0.9, use_ema=True)),
    "two replicas": (True, lambda: keras.optimizers.Adam(falling(), gradient_accumulation_steps=2, clipnorm=1.0)),
    "lars": (True, lambda: tfaccel.Lars(2.0)),
}


def made(kind):
    replicated, optimizer = KINDS[kind]
    return compiled(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]) if replicated else None, optimizer=optimizer)


@pytest.mark.parametrize("kind", ["number", *(pytest.param(kind, marks=pytest.mark.slow) for kind in [*KINDS][1:])])
def test_a_trained_model_is_as_before_to_the_last_bit(logical_devices, kind):
    model = made(kind)
    tfaccel.fit(model, X, Y, batch_size=16, epochs=1, verbose=0)
    before, function = state(model), model.train_function
    rate = float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
    report = find_learning_rate(model, X, Y, batch_size=16, test=SHORT)
    assert len(report.losses) == 16  # more than the three batches of an epoch
    assert report.global_batch_size == (32 if kind == "two replicas" else 16)
    assert state(model) == before
    assert model.train_function is function
    assert float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)) == rate == report.learning_rate


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_model_trains_as_without_the_test(logical_devices, kind):
    outcomes = []
    for tests in (True, False):
        model = made(kind)
        if tests:
            find_learning_rate(model, X, Y, batch_size=16, test=SHORT)
            assert model.train_function is None
        history = tfaccel.fit(model, X, Y, batch_size=16, epochs=2, verbose=0).history
        outcomes.append((history, state(model)))
    assert outcomes[0] == outcomes[1]


def test_two_replicas_give_what_one_device_gives_and_are_as_before(logical_devices):
    keras.utils.set_random_seed(0)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = linear_model(keras.optimizers.SGD(0.1, momentum=0.9))
        model.optimizer.build(model.trainable_variables)
    before = values(model, [*model.weights, *model.optimizer.variables])
    report = find_learning_rate(model, X, Y, batch_size=16, shuffle=False, test=SHORT)
    assert values(model, [*model.weights, *model.optimizer.variables]) == before
    alone = linear_model(keras.optimizers.SGD(0.1, momentum=0.9))
    alone.set_weights(model.get_weights())
    expected = find_learning_rate(alone, X, Y, batch_size=16, shuffle=False, test=SHORT)
    assert report.losses == pytest.approx(expected.losses, rel=1e-5)
    assert report.learning_rate == pytest.approx(0.1)


def test_an_error_leaves_the_model_as_before_too(logical_devices):
    model = linear_model(keras.optimizers.Adam(0.01))
    tfaccel.fit(model, X, Y, verbose=0)
    before = state(model)

    def stop(*step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_learning_rate(model, X, Y, on_step=stop)
    assert state(model) == before
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01)


# --- What is tested -----------------------------------------------------------------------------------------------


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


# --- The suggestion -----------------------------------------------------------------------------------------------


def test_the_suggestion_trains(logical_devices):
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
    y = x @ np.ones((4, 1), "float32")
    model = linear_model()
    report = find_learning_rate(model, x, y)
    assert report.stopped_because.startswith(
        "The smoothed loss was more than 4 times its lowest value at learning rate "
    )
    assert report.reason == "The smoothed loss falls most steeply there."
    model.optimizer.learning_rate = report.suggestion
    losses = tfaccel.fit(model, x, y, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < 0.1 * report.losses[0]


def test_without_a_fall_nothing_is_suggested(logical_devices, tmp_path):
    model = linear_model()
    flat = find_learning_rate(model, X, Y, test=LearningRateTest(min_learning_rate=1e-12, max_learning_rate=1e-9))
    assert flat.suggestion is None
    assert "no more than its noise" in flat.reason
    too_high = find_learning_rate(model, X, Y, test=LearningRateTest(min_learning_rate=5.0))
    assert too_high.suggestion is None
    assert "rates were tested, and 14 are needed. Start from a lower min_learning_rate" in too_high.reason
    broken = find_learning_rate(model, np.where(X > 0, np.nan, X), Y)
    assert (broken.learning_rates, broken.suggestion) == ((), None)
    assert broken.reason == "The loss is NaN or infinite at learning rate 1.00e-07, step 1."
    assert dict(broken.rows())["suggested learning rate"] == "none"
    with pytest.raises(DataError, match="needs at least one"):
        broken.save_picture(tmp_path / "rates.png")
    flat.save_picture(tmp_path / "rates.png")
    flat.save(tmp_path / "rates.json")
    assert LearningRateReport.from_json(json.loads((tmp_path / "rates.json").read_text())) == flat
    assert (tmp_path / "rates.png").stat().st_size > 5000


def test_a_gradient_that_overflows_for_ever_ends_the_test(logical_devices):
    @tf.custom_gradient
    def broken_gradient(value):
        return value, lambda upstream: upstream * float("inf")

    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    model = linear_model(optimizer, loss=lambda y, prediction: broken_gradient(tf.reduce_mean(prediction, axis=-1)))
    report = find_learning_rate(model, X, Y, test=SHORT)
    assert report.reason == "The gradients are not finite at learning rate 1.00e-07, whatever the loss scale."


def test_losses_are_smoothed_as_lightning_does():
    losses = np.random.default_rng(0).normal(size=50) + 3
    smoothed = SmoothedLoss(LearningRateTest())
    average, expected = 0.0, []
    for number, loss in enumerate(losses, start=1):
        average = 0.98 * average + 0.02 * loss
        expected.append(average / (1 - 0.98**number))
        smoothed.add(loss)
    np.testing.assert_allclose(smoothed.values, expected, rtol=1e-12)


@pytest.mark.parametrize(("sign", "losses"), [(1, [1.0, 3.9, 4.1]), (-1, [-1.0, 1.9, 2.1])])
def test_divergence_is_measured_from_the_lowest_loss(sign, losses):
    smoothed = SmoothedLoss(LearningRateTest(smoothing=0.0))
    seen = []
    for loss in losses:
        smoothed.add(loss)
        seen.append(smoothed.diverged)
    assert seen == [False, False, True]


def test_the_steepest_fall_over_the_logarithm_is_suggested():
    test = LearningRateTest(min_learning_rate=1e-6, max_learning_rate=1.0, num_steps=61)
    rates = [test.learning_rate(step) for step in range(61)]
    curve = [1 - 1 / (1 + math.exp(-4 * (math.log10(rate) + 3))) for rate in rates]  # steepest at 1e-3
    found, reason = suggestion(rates, curve, curve, test)
    assert found == pytest.approx(1e-3)
    assert "most steeply" in reason
    early = dataclasses.replace(test, skip_first=0)
    spike = [5.0, *curve[1:]]
    assert suggestion(rates, spike, spike, early)[0] < 1e-5
    assert suggestion(rates, spike, spike, test)[0] == pytest.approx(1e-3)  # the first rates do not count
    _, ending = suggestion(rates[:32], curve[:32], curve[:32], test)
    assert "still falls at the highest tested rate" in ending
    noise = list(np.random.default_rng(0).normal(size=61))
    assert suggestion(rates, noise, smoothed_of(noise, test), test)[0] is None


def smoothed_of(losses, test):
    smoothed = SmoothedLoss(test)
    return [smoothed.add(loss) for loss in losses]


# --- Refused ------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("module", ["learning_rate_report", "learning_rate_curve", "find_learning_rate"])
def test_examples(logical_devices, module):
    result = doctest.testmod(importlib.import_module(f"tfaccel.tuning.{module}"))
    assert result.failed == 0
    assert result.attempted > 0
