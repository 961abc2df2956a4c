"""Kinds of models that `compress` takes: of other dtypes, in Keras alone, and those that it refuses by name."""

import json

import compress_cases as cases
import keras
import numpy as np
import pytest
from keras import layers

from tfaccel import compress
from tfaccel.compressing.call_signature import get_signature
from tfaccel.compressing.litert.model import LitertModel, relative_error
from tfaccel.compressing.litert.post_training import make_converter
from tfaccel.errors import CompressionError

QUICK = {"latency_seconds": 0.01, "num_threads": (1,), "num_representative": 20}
NUMBERS = np.random.default_rng(4).normal(size=(12, 4)).astype("float32")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_models_of_other_dtypes_calculate_in_float32_and_stay_as_they_are(logical_devices, tmp_path, dtype):
    kinds = [
        layers.Conv1D(32, 2, dtype=dtype),
        layers.BatchNormalization(dtype=dtype),
        layers.Flatten(dtype=dtype),
        layers.Dense(8, dtype=dtype),
    ]
    model = keras.Sequential([keras.Input((4, 8)), *kinds])
    before = [np.asarray(weight, "float64") for weight in model.get_weights()]
    x = np.random.default_rng(5).normal(size=(12, 4, 8)).astype("float32")
    found = compress(
        model, methods="float16", representative_data=x, max_metric_drop=0.1, out_dir=tmp_path / "out", **QUICK
    )
    assert found.winner.variant.name == "float16"
    assert found.results[1].agreement > 0.999
    assert {weight.dtype for weight in model.weights} == {dtype}
    assert {layer.dtype_policy.name for layer in model.layers} == {dtype}
    for weight, expected in zip(model.get_weights(), before, strict=True):
        assert np.array_equal(np.asarray(weight, "float64"), expected)
    assert str(keras.ops.dtype(model(x))).endswith(dtype)


@pytest.mark.slow
def test_forms_in_keras_are_compared_with_keras_and_load_elsewhere(logical_devices, run_python, tmp_path):
    """A layer that LiteRT cannot take does not matter, and the file of the float model has no optimizer."""
    keras.utils.set_random_seed(0)
    parts = [layers.Dense(256, "relu"), layers.Dense(256), cases.Odd(), layers.Dense(3)]
    model = keras.Sequential([keras.Input((4,), name="numbers"), *parts])
    model.compile("adam", loss="mse")
    model.fit(NUMBERS, NUMBERS[:, :3], verbose=0)
    expected = model.predict(NUMBERS, verbose=0)
    found = compress(
        model,
        methods="keras_int8,keras_int4",
        representative_data=NUMBERS,
        max_metric_drop=1.0,
        validation_data=(NUMBERS, NUMBERS[:, :3]),
        out_dir=tmp_path / "out",
        **QUICK,
    )
    assert [one.variant.name for one in found.results] == ["keras_float32", "keras_int8", "keras_int4"]
    assert [one.failure for one in found.results] == ["", "", ""]
    assert found.winner.variant.name == "keras_int4"
    of_float, in_int8, in_int4 = found.results
    assert of_float.size_bytes < 1.3 * 4 * model.count_params() + 20_000
    assert of_float.latencies[0].p50_seconds > 0
    np.save(tmp_path / "x.npy", NUMBERS)
    code = (
        "import json, keras, numpy as np, sys\nsys.path.insert(0, 'tests/compressing')\nimport compress_cases\n"
        f"x = np.load({str(tmp_path / 'x.npy')!r})\n"
        "paths = ['variants/keras_float32', 'variants/keras_int8', 'model']\n"
        f"models = [keras.models.load_model({str(tmp_path / 'out')!r} + f'/{{path}}.keras') for path in paths]\n"
        "print(json.dumps([model.predict(x, verbose=0).tolist() for model in models]))"
    )
    elsewhere = json.loads(run_python(code).stdout.splitlines()[-1])
    np.testing.assert_allclose(elsewhere[0], expected, atol=1e-5)
    for values, one in zip(elsewhere[1:], (in_int8, in_int4), strict=True):
        here = keras.models.load_model(one.variant.path).predict(NUMBERS, verbose=0)
        np.testing.assert_allclose(values, here, atol=1e-6)
        spread = float(((expected - expected.mean()) ** 2).sum())
        assert 1 - ((np.asarray(values) - expected) ** 2).sum() / spread == pytest.approx(one.agreement, abs=1e-3)


def attention_model(*, masked):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 16), name="rows")
    x = layers.MultiHeadAttention(2, 8, name="attention")(inputs, inputs, use_causal_mask=masked)
    return keras.Model(inputs, layers.Dense(3)(layers.Add()([x, inputs])))


@pytest.mark.slow
def test_masks_of_attention_become_numbers_that_integers_can_hold(logical_devices):
    x = np.random.default_rng(6).normal(size=(20, 6, 16)).astype("float32")
    for masked in (True, False):
        model = attention_model(masked=masked)
        signature = get_signature(model, x)
        rows = list(signature.rows(x))
        with make_converter(model, signature) as converter:
            for method in ("int8", "int16x8"):
                outputs = LitertModel(converter.convert(method, rows), signature).predict(x)
                assert relative_error(model.predict(x, verbose=0), outputs) < 0.1
            note = converter.mask_note(rows)
            float_outputs = LitertModel(converter.convert("float16"), signature).predict(x)
            np.testing.assert_allclose(float_outputs, model(x), atol=0.01)
        assert note.startswith("masks are at -") if masked else note == ""


class NoConfig(layers.Layer):
    """A layer that Keras can save and not load again: it is not registered."""

    def call(self, inputs):
        return inputs * 2.0


class Noisy(layers.Layer):
    """Random at inference, in operations that LiteRT has."""

    def build(self, shape):
        self.seeds = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.seeds.assign_add(1.0)
        return inputs + self.seeds


@pytest.mark.slow
def test_model_that_cannot_be_loaded_again_has_forms_in_litert_only(logical_devices, tmp_path):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(128), NoConfig()])
    found = compress(
        model,
        methods="keras_int8,float16",
        representative_data=NUMBERS,
        max_metric_drop=0.1,
        out_dir=tmp_path / "out",
        **QUICK,
    )
    by_name = {one.variant.name: one.failure for one in found.results}
    for name in ("keras_float32", "keras_int8"):
        assert by_name[name].startswith("Keras cannot save this model and load it again (Could not locate class")
    assert (by_name["float32"], found.winner.variant.name) == ("", "float16")


def quantized():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(8, name="first")])
    model.layers[0].quantize("int8")
    return model


def with_nan():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(8)])
    model.layers[0].kernel.assign(np.full((4, 8), np.nan))
    return model


@pytest.mark.parametrize(
    ("make_model", "message"),
    [
        (quantized, "The model is already quantized: its layer 'first' in int8. Give the float model"),
        (with_nan, r"The float model gives nan in .* Look for NaN in its weights and in the data"),
        (lambda: keras.Sequential([keras.Input((4,)), Noisy(), layers.Dense(8)]), "it differs from call to call"),
    ],
)
def test_models_that_nothing_can_be_compared_with_are_refused(logical_devices, tmp_path, make_model, message):
    with pytest.raises(CompressionError, match=message):
        compress(make_model(), methods="float16", representative_data=NUMBERS, out_dir=tmp_path / "out", **QUICK)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_model_that_is_not_compiled_is_said_to_be_judged_by_agreement(logical_devices, tmp_path):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(64)])
    found = compress(
        model,
        methods="float16",
        representative_data=NUMBERS,
        validation_data=(NUMBERS, NUMBERS),
        out_dir=tmp_path / "out",
        **QUICK,
    )
    assert found.metric == "agreement"
    assert found.held_out.endswith("; the model is not compiled, so only outputs are compared")
