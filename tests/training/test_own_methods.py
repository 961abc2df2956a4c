"""Overridden `fit`, `evaluate` and `predict` run with the engine behind `super()`, or raise an error."""

from functools import partial

import keras
import numpy as np
import pytest
from replica_models import X, Y, scope_of

from tfaccel.errors import DataError, PlanError, WorkloadError
from tfaccel.training.evaluate import evaluate, predict
from tfaccel.training.fit import fit
from tfaccel.training.front import refuse_own_methods

pytestmark = pytest.mark.usefixtures("logical_devices")


@keras.saving.register_keras_serializable("tests")
class Scales(keras.Model):
    """Scales its inputs in `fit`, `evaluate` and `predict`, as KerasHub's tasks preprocess theirs."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def fit(self, x, y, scale=0.01, **kwargs):
        return super().fit(x * scale, y, **kwargs)

    def evaluate(self, x=None, y=None, **kwargs):
        return super().evaluate(None if x is None else x * 0.01, y, **kwargs)

    def predict(self, x, **kwargs):
        return super().predict(x * 0.01, **kwargs)


class OwnArguments(keras.Sequential):
    """Takes its data as arguments of its own, and reaches Keras's methods in several ways."""

    def fit(self, pair=None, scale=1.0, **kwargs):
        return super().fit(pair[0] * scale, pair[1], **kwargs)

    def evaluate(self, pair=None, **kwargs):
        return keras.Model.evaluate(self, *pair, **kwargs)

    def predict(self, *, conditions, **kwargs):
        return super().predict(conditions["x"], **kwargs)


class CallsTfaccel(keras.Sequential):
    def fit(self, x, y, **kwargs):
        return fit(self, 0.5 * x, y, **kwargs)

    def evaluate(self, x, y, **kwargs):
        return evaluate(self, 0.5 * x, y, **kwargs)


class CallsKeras(keras.Sequential):
    def fit(self, x, y, **kwargs):
        return super().fit(0.5 * x, y, **kwargs)

    def evaluate(self, x, y, **kwargs):
        return super().evaluate(0.5 * x, y, **kwargs)


class TrainsOnBatches(keras.Sequential):
    def fit(self, x, y, **kwargs):
        return self.train_on_batch(x, y)


class TrainsByItself(keras.Sequential):
    def fit(self, x, y, **kwargs):
        self.layers[0].kernel.assign_add(0 * self.layers[0].kernel)


class OwnFunction(keras.Sequential):
    def make_train_function(self, force=False):
        self.train_function = lambda iterator: {"rows": float(len(next(iterator)[0]))}
        return self.train_function


def made(kind, num_replicas):
    keras.utils.set_random_seed(0)
    with scope_of(num_replicas):
        model = kind() if kind is Scales else kind([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"] if kind is Scales else None)
    return model


def run(methods, num_replicas, tmp_path=None):
    train, judge, guess = methods
    model = made(Scales, num_replicas)
    saver = [] if tmp_path is None else [keras.callbacks.ModelCheckpoint(str(tmp_path / "model.keras"))]
    history = train(
        model,
        100 * X,
        Y,
        epochs=2,
        batch_size=8,
        shuffle=False,
        verbose=0,
        callbacks=saver,
        validation_data=(100 * X[:9], Y[:9]),
    ).history
    return history, judge(model, 100 * X, Y, verbose=0), guess(model, 100 * X, verbose=0), type(model)


def test_methods_of_a_class_run_with_the_engine_behind_them(tmp_path):
    of_keras = (Scales.fit, Scales.evaluate, Scales.predict)
    wanted = run(of_keras, 0)
    found = run((partial(fit, exact_kernels=True), evaluate, predict), 0, tmp_path)
    assert found[0] == wanted[0] and found[1] == wanted[1] and found[3] is Scales
    np.testing.assert_array_equal(found[2], wanted[2])
    assert type(keras.models.load_model(tmp_path / "model.keras")) is Scales
    history, scores, guesses, kind = run((fit, evaluate, predict), 2)
    assert kind is Scales
    for name, values in wanted[0].items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5)
    np.testing.assert_allclose(scores, wanted[1], rtol=1e-5)
    np.testing.assert_allclose(guesses, wanted[2], rtol=1e-4, atol=1e-5)


def test_steps_past_the_engine_are_kerass_on_one_device_and_refused_on_several():
    assert isinstance(fit(made(TrainsOnBatches, 0), X, Y), float)
    with pytest.raises(PlanError, match=r"TrainsOnBatches.fit calls train_on_batch.*2 replicas.*super\(\).fit"):
        fit(made(TrainsOnBatches, 2), X, Y)
    with pytest.raises(PlanError, match=r"TrainsByItself.fit never called super\(\).fit"):
        fit(made(TrainsByItself, 2), X, Y)


def test_a_step_that_a_callback_makes_by_itself_is_refused_on_several_replicas():
    model = made(Scales, 2)
    step = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: model.train_on_batch(X, Y))
    with pytest.raises(
        PlanError, match=r"A callback calls train_on_batch.*with 2 replicas\. Call model\.fit\(\.\.\.\)"
    ):
        fit(model, X, Y, callbacks=[step], verbose=0)


def test_own_functions_for_steps_run_in_kerass_loop_or_are_refused():
    history = fit(made(OwnFunction, 0), X, Y, batch_size=8, verbose=0, shuffle=False).history
    assert history["rows"] == [5.0]
    with pytest.raises(PlanError, match=r"OwnFunction overrides make_train_function.*2 replicas.*train_step"):
        fit(made(OwnFunction, 2), X, Y)


def test_train_refuses_what_it_would_pass_by():
    with pytest.raises(WorkloadError, match="'digits' returns a Scales, which overrides fit, evaluate, predict"):
        refuse_own_methods(made(Scales, 0), "build_model of workload 'digits'")
    prepared = made(Scales, 0)
    prepared.preprocessor = None
    refuse_own_methods(prepared, "build_model of workload 'digits'")


OPTIONS = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}


@pytest.mark.parametrize("num_replicas", [0, 2])
def test_own_methods_with_arguments_of_their_own(num_replicas):
    wanted, model = made(OwnArguments, 0), made(OwnArguments, num_replicas)
    logs = wanted.fit(pair=(X, Y), scale=0.5, **OPTIONS).history
    assert fit(model, pair=(X, Y), scale=0.5, **OPTIONS).history["loss"] == pytest.approx(logs["loss"])
    assert evaluate(model, pair=(X, Y), verbose=0) == pytest.approx(wanted.evaluate(pair=(X, Y), verbose=0))
    guesses = [run(conditions={"x": X}, verbose=0) for run in (wanted.predict, partial(predict, model))]
    np.testing.assert_allclose(guesses[0], guesses[1], rtol=1e-5)
    runs = wanted.fit, partial(fit, model)
    logs = [run((X, Y), 0.5, **OPTIONS).history["loss"] for run in runs]  # by their places
    assert logs[1] == pytest.approx(logs[0])


@pytest.mark.parametrize("num_replicas", [0, 2])
def test_own_methods_that_call_tfaccel(num_replicas):
    """Called by the user or by tfaccel, they prepare their data once."""
    wanted = made(CallsKeras, 0)
    expected = wanted.fit(X, Y, **OPTIONS).history["loss"], wanted.evaluate(X, Y, verbose=0)
    for calls in (
        lambda model: (model.fit, model.evaluate),
        lambda model: (partial(fit, model), partial(evaluate, model)),
    ):
        train, judge = calls(made(CallsTfaccel, num_replicas))
        history = train(X, Y, validation_data=(X, Y), **OPTIONS).history
        assert history["loss"] == pytest.approx(expected[0])
        assert judge(X, Y, verbose=0) == pytest.approx(expected[1])
        assert history["val_loss"][-1] == pytest.approx(expected[1])  # of the data that `evaluate` passes on


@pytest.mark.parametrize("num_replicas", [0, 2])
@pytest.mark.parametrize("kind", [keras.Sequential, CallsKeras])
def test_libraries_that_patch_fit_of_keras(monkeypatch, kind, num_replicas):
    """They call what they have replaced, with a callback of theirs, as `mlflow.autolog` does."""
    replaced, logged = keras.Model.fit, []

    def patched(*args, **kwargs):
        logger = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logged.append(logs["loss"]))
        return replaced(*args, **{**kwargs, "callbacks": [*kwargs.get("callbacks", ()), logger]})

    expected = made(kind, 0).fit(X, Y, **OPTIONS).history["loss"]
    monkeypatch.setattr(keras.Model, "fit", patched)
    stopped = []
    own = keras.callbacks.LambdaCallback(on_train_end=lambda logs: stopped.append(1))
    found = fit(made(kind, num_replicas), X, Y, callbacks=[own], **OPTIONS).history["loss"]
    assert found == pytest.approx(expected)
    assert (logged, stopped) == (found, [1])
    if kind is keras.Sequential:
        refuse_own_methods(made(kind, 0), "the patched model")  # `train` does not need Keras's `fit`
    monkeypatch.undo()
    assert keras.Model.fit is replaced
    assert made(kind, 0).fit(X, Y, **OPTIONS).history["loss"] == expected


def test_a_method_saved_before_and_set_on_the_model_runs_the_engine():
    model = made(keras.Sequential, 2)
    plain = model.fit
    model.fit = lambda *args, **kwargs: plain(*args, **{**kwargs, "epochs": 1})
    assert len(fit(model, X, Y, **OPTIONS).history["loss"]) == 1


def test_misspelled_and_missing_arguments():
    model = made(keras.Sequential, 0)
    with pytest.raises(TypeError, match=r"tfaccel.fit has no argument 'batchsize'. Did you mean 'batch_size'\?"):
        fit(model, X, Y, batchsize=8)
    with pytest.raises(TypeError, match=r"tfaccel.predict has no argument 'verbos'. Did you mean 'verbose'\?"):
        predict(model, X, verbos=0)
    for run in (fit, evaluate, predict):
        with pytest.raises(DataError, match="Received no data: x=None"):
            run(model)
