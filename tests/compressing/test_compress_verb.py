"""`compress`: forms of small models, measured for real, and what it writes."""

import dataclasses
import json
import warnings
import zipfile

import compress_cases as cases
import keras
import numpy as np
import pytest
from compress_cases import QUICK
from keras import layers
from PIL import Image

from tfaccel import compress
from tfaccel.compressing.keras_quantize import load_quantized, quantize_in_keras, save_quantized
from tfaccel.compressing.litert.file import read_litert_raw_input
from tfaccel.data.raw_input import ImageInput


@pytest.fixture(scope="module")
def all_forms(logical_devices, tmp_path_factory):
    folder = tmp_path_factory.mktemp("forms") / "compressed"
    found = compress(
        cases.image_model(),
        workload=cases.image_workload(),
        methods="float16,dynamic,int8,int16x8,mixed",
        max_metric_drop=0.1,
        out_dir=str(folder),
        **QUICK,
    )
    return found, folder, {one.variant.name: one for one in found.results}


def test_every_form_is_measured(all_forms):
    found, _, by_name = all_forms
    names = ["float32", "float16", "dynamic", "int8", "int16x8", "mixed"]
    assert list(by_name) == names
    assert [one.failure for one in found.results] == [""] * len(names)
    assert (found.metric, found.lower_is_better) == ("accuracy", False)
    assert found.held_out == f"{cases.NUM_ROWS} examples of the validation data of tiny_images"
    assert found.representative.startswith("20 examples of the training set of tiny_images")
    for one in found.results:
        assert one.size_bytes > 0
        assert 0 < one.zipped_bytes <= one.size_bytes + 200
        assert [latency.num_threads for latency in one.latencies] == [1]
        assert 0 < one.latencies[0].p50_seconds <= one.latencies[0].p95_seconds
        assert one.peak_memory_bytes > 0
        assert one.agreement == pytest.approx(one.metrics["accuracy"])  # Labels are the float model's decisions.
    assert by_name["float32"].metrics["accuracy"] == 1.0


def test_sizes_and_operations_are_what_the_methods_promise(all_forms):
    found, _, by_name = all_forms
    ratios = {name: found.size_ratio(one) for name, one in by_name.items()}
    assert 0.5 < ratios["float16"] < 0.55
    assert max(ratios["int8"], ratios["int16x8"], ratios["dynamic"]) < 0.32
    assert by_name["float32"].num_operations == sum(by_name["float32"].float_operations.values()) > 3
    assert by_name["int8"].float_operations == {}
    assert by_name["int8"].agreement > 0.8
    assert by_name["int16x8"].agreement > 0.9


@pytest.mark.slow
def test_forms_in_keras_and_of_weights_alone(logical_devices, tmp_path):
    methods = "keras_int8,keras_int4,weight_int8,weight_int4,weight_int4_blocks,keras_gptq,keras_awq"
    found = compress(
        cases.image_model(),
        workload=cases.image_workload(),
        methods=methods,
        max_metric_drop=0.5,
        out_dir=str(tmp_path / "out"),
        **QUICK,
    )
    by_name = {one.variant.name: one for one in found.results}
    assert list(by_name) == ["float32", "keras_float32", *methods.split(",")]
    assert found.size_ratio(by_name["keras_int8"]) < 0.6
    assert found.size_ratio(by_name["weight_int8"]) < 0.32
    assert found.size_ratio(by_name["weight_int4"]) < 0.2
    assert found.size_ratio(by_name["weight_int4_blocks"]) < 0.25
    assert by_name["weight_int4_blocks"].agreement > 0.7
    assert by_name["weight_int4_blocks"].variant.notes[0].startswith("2 of 2 dense layers in blocks of 32")
    assert by_name["keras_int8"].float_operations is None
    assert by_name["keras_int8"].agreement > 0.8
    assert by_name["weight_int8"].agreement > 0.9
    assert by_name["keras_int8"].latencies[0].p50_seconds > 0
    assert by_name["keras_int4"].variant.notes == ("2 of 5 layers with weights are quantized by Keras",)
    for name in ("gptq", "awq"):
        assert f"{name.upper()} needs a token embedding followed by a stack" in by_name[f"keras_{name}"].failure


@pytest.mark.parametrize("mode", ["gptq", "awq"])
def test_calibration_sees_the_rows_unlike_keras_s_own_and_is_loaded_as_it_was(logical_devices, tmp_path, mode):
    tokens = np.random.default_rng(0).integers(0, 30, (64, 12)).astype("int32")
    model, alone = cases.stack_of_blocks(), cases.stack_of_blocks()
    expected = model.predict(tokens, verbose=0)
    notes = quantize_in_keras(model, mode, [{"tokens": tokens[row : row + 1]} for row in range(len(tokens))])
    assert notes == ("2 of 3 layers with weights are quantized by Keras",)
    kind = {"gptq": keras.quantizers.GPTQConfig, "awq": keras.quantizers.AWQConfig}[mode]
    settings = {"num_samples": 64, "sequence_length": 12, "group_size": -1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about layers that have nothing to quantize
        alone.quantize(mode, config=kind(list(tokens), str, **settings))
    error, of_alone = (np.square(one.predict(tokens, verbose=0) - expected).mean() for one in (model, alone))
    assert 0 < error < 0.95 * of_alone
    save_quantized(model, tmp_path / "small.keras")
    loaded = load_quantized(tmp_path / "small.keras")
    assert np.array_equal(loaded.predict(tokens, verbose=0), model.predict(tokens, verbose=0))


def test_layers_after_the_blocks_stay_in_float(logical_devices, tmp_path):
    model = cases.stack_of_blocks(num_blocks=1)
    tokens = np.random.default_rng(0).integers(0, 30, (8, 12)).astype("int32")
    quantize_in_keras(model, "gptq", [{"tokens": tokens[row : row + 1]} for row in range(len(tokens))])
    assert [layer.quantization_mode for layer in model.layers[1:]] == [None, "gptq", None]
    save_quantized(model, tmp_path / "small.keras")
    loaded = load_quantized(tmp_path / "small.keras")
    assert np.array_equal(loaded.predict(tokens, verbose=0), model.predict(tokens, verbose=0))


def test_costliest_layers_stay_in_float(all_forms):
    found, _, by_name = all_forms
    assert {"first", "second", "hidden", "logits"} == {cost.layer for cost in found.sensitivity}
    assert all(cost.output_error > 0 for cost in found.sensitivity)
    drops = [cost.drop for cost in found.sensitivity]
    assert drops == sorted(drops, reverse=True)
    kept = by_name["mixed"].variant.float_layers
    assert kept == tuple(cost.layer for cost in found.sensitivity[: len(kept)])
    assert found.is_within(by_name["mixed"])


@pytest.mark.slow
def test_mixed_keeps_the_costliest_half_in_float_where_nothing_is_within_the_limit(logical_devices, tmp_path):
    found = compress(
        cases.image_model(),
        workload=cases.image_workload(),
        methods="int8,mixed",
        max_metric_drop=-0.5,
        out_dir=str(tmp_path / "out"),
        **QUICK,
    )
    int8, mixed = found.results[1:]
    assert mixed.variant.float_layers == tuple(cost.layer for cost in found.sensitivity[:2])
    assert mixed.float_operations
    assert found.size_ratio(int8) < found.size_ratio(mixed) < 1
    assert found.winner is None


def test_outcome_is_in_its_folder(all_forms):
    found, folder, by_name = all_forms
    report = json.loads((folder / "report.json").read_text())
    assert report == json.loads(json.dumps(found.to_json()))
    assert report["winner"] == found.winner.variant.name
    kept = folder / "variants" / f"{report['winner']}.tflite"
    assert (folder / "model.tflite").read_bytes() == kept.read_bytes()
    assert {path.name for path in (folder / "variants").iterdir()} == {f"{name}.tflite" for name in by_name}
    with Image.open(folder / "size_and_metric.png") as picture:
        assert picture.width > 100
    assert [path.name for path in folder.parent.iterdir()] == ["compressed"]


def test_form_runs_with_nothing_but_litert(all_forms):
    from ai_edge_litert.interpreter import Interpreter

    _, folder, _ = all_forms
    runner = Interpreter(str(folder / "variants" / "int8.tflite")).get_signature_runner("serving_default")
    outputs = runner(pixels=cases.images(1)[:1])
    expected = cases.image_model().predict(cases.images(1)[:1], verbose=0)
    assert list(outputs) == ["logits"]
    assert np.abs(outputs["logits"] - expected).max() < 0.1 * np.abs(expected).max()


@pytest.mark.slow
def test_winner_says_what_its_inputs_are_made_of(logical_devices, tmp_path):
    raw_input = ImageInput(image_size=8, num_channels=1, class_names=tuple("abcdefghij"))
    workload = dataclasses.replace(cases.image_workload(), raw_input=raw_input)
    compress(
        cases.image_model(), workload=workload, methods="float16", confidence=0, out_dir=str(tmp_path / "out"), **QUICK
    )
    winner, kept = tmp_path / "out" / "model.tflite", tmp_path / "out" / "variants" / "float16.tflite"
    assert winner.read_bytes().startswith(kept.read_bytes())
    assert read_litert_raw_input(winner) == raw_input
    assert zipfile.ZipFile(winner).read("labels.txt").decode().split() == list("abcdefghij")
    assert read_litert_raw_input(kept) is None


@pytest.mark.slow
def test_none_within_the_limit_leaves_no_model(logical_devices, tmp_path):
    found = compress(
        cases.image_model(),
        workload=cases.image_workload(),
        methods="dynamic",
        max_metric_drop=-0.01,
        out_dir=str(tmp_path / "out"),
        **QUICK,
    )
    assert found.winner is None
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "report.json",
        "size_and_metric.png",
        "variants",
    ]


@pytest.mark.slow
def test_compiled_model_is_judged_by_its_own_metrics_in_float32(logical_devices, tmp_path):
    policy = keras.DTypePolicy("mixed_bfloat16")
    model = keras.Sequential([keras.Input((16,)), layers.Dense(128, "relu", dtype=policy), layers.Dense(1)])
    model.compile(loss="mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=(40, 16)).astype("float32")
    y = np.asarray(model(x))
    found = compress(
        model,
        methods="float16",
        representative_data=x,
        validation_data=(x, y),
        max_metric_drop=0.1,
        out_dir=str(tmp_path / "out"),
        **QUICK,
    )
    assert (found.metric, found.lower_is_better) == ("mae", True)
    assert found.held_out == "40 examples of the validation data given"
    assert found.results[1].agreement > 0.999
    assert model.layers[0].dtype_policy.name == "mixed_bfloat16"
    assert found.winner.variant.name == "float16"


@pytest.mark.slow
def test_without_a_metric_agreement_judges(logical_devices, tmp_path):
    inputs = keras.Input((16,))
    model = cases.OwnTestStep(inputs, layers.Dense(64)(inputs))
    x = np.random.default_rng(0).normal(size=(20, 16)).astype("float32")
    given = {"representative_data": x, "validation_data": (x, x[:, :1]), "out_dir": str(tmp_path / "out")}
    found = compress(model, methods="float16", **given, **QUICK)
    assert found.metric == "agreement"
    assert found.value(found.results[0]) == 1.0
    assert "it overrides test_step" in found.held_out
