"""A functional model is built without calling its layers, and has the same variables as with Keras."""

import keras
import numpy as np
import pytest

from tfaccel import train
from tfaccel.training.private import private_models

pytestmark = pytest.mark.usefixtures("logical_devices")


def _dense(inputs, units):
    return keras.layers.Dense(units, activity_regularizer="l2")(inputs)


def _two_in_two_out():
    inputs = {"a": keras.Input((3,), name="a"), "b": keras.Input((None, 2), name="b")}
    pooled = keras.layers.GlobalAveragePooling1D()(inputs["b"])
    outputs = {"one": _dense(inputs["a"], 2), "two": keras.layers.Dense(1, activation="sigmoid")(pooled)}
    model = keras.Model(inputs, outputs)
    model.compile(
        "adam", {"one": "mse", "two": "binary_crossentropy"}, metrics={"two": [keras.metrics.AUC(name="auc")]}
    )
    rows = (
        {"a": np.zeros((4, 3), "float32"), "b": np.zeros((4, 5, 2), "float32")},
        {"one": np.zeros((4, 2), "float32"), "two": np.zeros((4, 1), "float32")},
    )
    return model, rows


def _sequential():
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(4)])
    model.compile("sgd", "mse", metrics=["mae", keras.metrics.R2Score()])
    return model, (np.zeros((4, 3), "float32"), np.zeros((4, 4), "float32"), np.ones((4,), "float32"))


def _sequence_of_any_length():
    inputs = keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Embedding(5, 2, mask_zero=True)(inputs)))
    model.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    return model, (np.zeros((4, 7), "int32"), np.zeros((4, 7), "int32"))


class OwnCall(keras.Model):
    def call(self, x):
        return super().call(x)[:, :2]


def _functional_with_a_call_of_its_own():
    inputs = keras.Input((3,))
    model = OwnCall(inputs, keras.layers.Dense(4)(inputs))
    model.compile("adam", "mse", metrics=[keras.metrics.F1Score()])
    return model, (np.zeros((4, 3), "float32"), np.zeros((4, 2), "float32"))


@pytest.mark.parametrize(
    ("make", "is_traced"),
    [
        (_two_in_two_out, False),
        (_sequential, False),
        (_sequence_of_any_length, True),
        (_functional_with_a_call_of_its_own, True),
    ],
)
def test_models_are_built_as_keras_builds_them(monkeypatch, make, is_traced):
    model, rows = make()
    by_keras, _ = make()
    by_keras._symbolic_build(data_batch=rows)
    calls = []
    dense = keras.layers.Dense.call
    monkeypatch.setattr(keras.layers.Dense, "call", lambda *args, **rest: calls.append(args) or dense(*args, **rest))
    private_models.build_model(model, rows)
    assert bool(calls) is is_traced
    assert "call" not in vars(model)
    assert model.optimizer.built
    for own, wanted in ((model, by_keras), (model.optimizer, by_keras.optimizer)):
        assert [(v.shape, v.dtype) for v in own.variables] == [(v.shape, v.dtype) for v in wanted.variables]
    assert [(m.name, [v.shape for v in m.variables]) for m in model.metrics] == [
        (m.name, [v.shape for v in m.variables]) for m in by_keras.metrics
    ]
    logs = [one.evaluate(*rows[:2], verbose=0, return_dict=True) for one in (model, by_keras)]
    assert list(logs[0]) == list(logs[1])


def test_inputs_that_do_not_fit_are_refused_as_by_keras():
    model, rows = _sequential()
    with pytest.raises(ValueError, match=r"expected axis -1 of input shape to have value 3|expected shape=\(None, 3\)"):
        private_models.build_model(model, (np.zeros((4, 5), "float32"), *rows[1:]))


@keras.saving.register_keras_serializable("compiles_itself")
class CompilesItself(keras.Model):
    """A task whose constructor compiles it, as those of KerasHub do."""

    def __init__(self, units=2):
        inputs = keras.Input((3,))
        super().__init__(inputs, keras.layers.Dense(units)(inputs))
        self.units = units
        self.compile("rmsprop", "mae")

    def get_config(self):
        return {"units": self.units}


def test_a_model_that_compiles_itself_is_trained_with_what_it_was_compiled_with_last(tmp_path):
    x = np.ones((8, 3), "float32")
    model = CompilesItself()
    own = train(model, x, x[:, :2], run_dir=tmp_path / "own", epochs=1, verbose=0)
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    again = train(model, x, x[:, :2], run_dir=tmp_path / "again", epochs=1, verbose=0)
    assert ("mae" in own.history, "mae" in again.history) == (False, True)
