"""`compress`: forms of small models, measured for real, and what is refused."""

import dataclasses
import json
import sys

import compress_cases as cases
import keras
import numpy as np
import pytest
from keras import layers
from PIL import Image

from tfaccel import compress
from tfaccel.compressing.call_signature import signature_of
from tfaccel.compressing.keras_quantize import load_quantized, quantize_in_keras
from tfaccel.compressing.litert.archive import read_litert_labels, read_litert_raw_input
from tfaccel.compressing.litert.file import float_operations, operations, slim
from tfaccel.compressing.litert.model import LitertModel
from tfaccel.compressing.litert.post_training import converter_of
from tfaccel.compressing.weight_only import quantize_weights
from tfaccel.data.raw_input import ImageInput
from tfaccel.errors import CompressionError, RunDirError, VersionError, WorkloadError

QUICK = {"latency_seconds": 0.01, "num_threads": (1,), "num_representative": 20}


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
    methods = "keras_int8,keras_int4,weight_int8,weight_int4,keras_gptq"
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
    assert by_name["keras_int8"].float_operations is None
    assert by_name["keras_int8"].agreement > 0.8
    assert by_name["weight_int8"].agreement > 0.9
    assert by_name["keras_int8"].latencies[0].p50_seconds > 0
    assert by_name["keras_int4"].variant.notes == ("2 of 5 layers with weights are quantized by Keras",)
    assert "GPTQ needs a token embedding followed by a stack" in by_name["keras_gptq"].failure


@pytest.mark.slow
def test_gptq_takes_a_model_that_names_its_blocks_but_keras_cannot_load_it_again(logical_devices, tmp_path):
    model = cases.stack_of_blocks()
    tokens = np.random.default_rng(0).integers(2, 30, (8, 12)).astype("int32")
    expected = model.predict(tokens, verbose=0)
    notes = quantize_in_keras(model, "gptq", [{"tokens": tokens[row : row + 1]} for row in range(len(tokens))])
    assert notes == ("2 of 3 layers with weights are quantized by Keras",)
    assert 0 < np.abs(model.predict(tokens, verbose=0) - expected).mean() < 0.3 * np.abs(expected).mean()
    model.save(tmp_path / "small.keras")
    with pytest.raises(CompressionError, match="Keras cannot load the quantized model again"):
        load_quantized(tmp_path / "small.keras")


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
    assert read_litert_labels(winner) == list("abcdefghij")
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


def converted(model, x):
    """The float32 form of a model, as LiteRT runs it, and its signature."""
    signature = signature_of(model, x)
    with converter_of(model, signature) as converter:
        return LitertModel(slim(converter.float_content), signature), signature


def test_file_without_what_no_runtime_reads_is_smaller_and_the_same(logical_devices):
    model, x = cases.image_model(), cases.images(num_rows=6)
    signature = signature_of(model, x)
    with converter_of(model, signature) as converter:
        contents = [converter.float_content, converter.convert("int8", list(signature.rows(x)))]
    for content in contents:
        slimmed = slim(content)
        assert len(slimmed) < len(content) - 500
        assert slim(slimmed) == slimmed
        assert operations(slimmed) == operations(content)
        assert float_operations(slimmed) == float_operations(content)
        before, after = (LitertModel(one, signature).predict(x) for one in (content, slimmed))
        assert np.array_equal(before, after)


@pytest.mark.slow
def test_weights_that_the_quantizer_puts_behind_the_file_s_tables_are_kept(logical_devices):
    x = np.random.default_rng(0).normal(size=(2, 300)).astype("float32")
    model = keras.Sequential([keras.Input((300,)), layers.Dense(800)])
    signature = signature_of(model, x)
    with converter_of(model, signature) as converter:
        content = quantize_weights(converter.float_content, num_bits=8)
    assert b"TFL3" in content[:8]
    assert len(slim(content)) < len(content)
    assert operations(slim(content)) == float_operations(slim(content)) == {"FULLY_CONNECTED": 1}
    before, after = (LitertModel(one, signature).predict(x) for one in (content, slim(content)))
    assert np.array_equal(before, after)
    np.testing.assert_allclose(after, model(x), atol=0.02)


@pytest.mark.slow
def test_several_inputs_and_outputs_keep_their_names(logical_devices):
    model, x = cases.several_inputs_model(), cases.several_inputs(5)
    litert, signature = converted(model, x)
    assert [(one.name, one.dtype) for one in signature.inputs] == [("numbers", "float32"), ("tokens", "int32")]
    found, expected = litert.predict(x), model.predict(x, verbose=0)
    assert found.keys() == expected.keys() == {"score", "kind"}
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5)


@pytest.mark.slow
def test_recurrent_layers_are_unrolled_for_int8_or_named(logical_devices, monkeypatch):
    from tfaccel.compressing.litert import post_training

    model, x = cases.several_inputs_model(), cases.several_inputs(5)
    signature, rows = signature_of(model, x), list(signature_of(model, x).rows(x))
    with post_training.converter_of(model, signature) as converter:
        found = LitertModel(converter.convert("int8", rows), signature).predict(x)
        np.testing.assert_allclose(found["kind"], model.predict(x, verbose=0)["kind"], atol=0.1)
        assert "WHILE" in operations(converter.convert("dynamic"))
        with pytest.raises(CompressionError, match="int16x8 does not support the integer input 'tokens'"):
            converter.convert("int16x8", rows)
        assert not any(layer.unroll for layer in model._flatten_layers() if hasattr(layer, "unroll"))
        monkeypatch.setattr(post_training, "MAX_STEPS", 5)
        del converter.without_loops
        with pytest.raises(CompressionError, match=r"are loops: 'both_ways/backward_lstm', 'both_ways/forward_lstm'"):
            converter.convert("int8", rows)


@pytest.mark.slow
def test_model_of_a_class_of_its_own_is_called_as_it_is(logical_devices):
    model, x = cases.Subclassed(), [np.ones((4, 3), "float32"), np.linspace(0, 1, 20, dtype="float32").reshape(4, 5)]
    expected = model(x)
    found = converted(model, x)[0].predict(x)
    assert isinstance(found, tuple)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"representative_data": np.ones((4, 7, 8, 1))},
            r"'pixels' must be of shape \(rows, 8, 8, 1\)\. Received: the "
            r"representative data given of shape \(4, 7, 8, 1\)",
        ),
        ({"representative_data": np.ones((0, 8, 8, 1))}, "arrays of the same length, at least one row"),
        ({"methods": "int9"}, r"There is no method 'int9'\. Did you mean 'int8'"),
        ({"metric": "acuracy"}, r"no metric 'acuracy' on the held-out data\. Did you mean 'accuracy'"),
        ({"workload": None}, "A model without a workload needs `representative_data`"),
        ({"out_dir": None}, "Give `out_dir`"),
        ({"num_epochs": 3}, "There is no option 'num_epochs'"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(logical_devices, tmp_path, arguments, message):
    known = {"workload": cases.image_workload(), "methods": "int8", "out_dir": str(tmp_path / "out"), **QUICK}
    with pytest.raises(CompressionError, match=message):
        compress(cases.image_model(), **{**known, **arguments})
    assert list(tmp_path.iterdir()) == []


def test_layers_that_litert_cannot_take_are_named(logical_devices, tmp_path):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(8), cases.Odd(name="odd_one"), layers.Dense(2)])
    data = np.ones((4, 4), "float32")
    with pytest.raises(CompressionError, match=r"cannot convert these layers of the model: '.*odd_one' \(Erfinv\)"):
        compress(model, methods="int8", representative_data=data, out_dir=str(tmp_path / "out"), **QUICK)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_model_or_run_is_refused(tmp_path):
    with pytest.raises(
        CompressionError, match=r"takes a run directory, a .keras file or a Keras 3 model\. Received: int"
    ):
        compress(3, out_dir=str(tmp_path / "out"))
    with pytest.raises(RunDirError, match="There is no run directory"):
        compress(tmp_path / "none")
    with pytest.raises(CompressionError, match=r"There is no file .*none\.keras"):
        compress(tmp_path / "none.keras", representative_data=np.ones((4, 1)), out_dir=str(tmp_path / "out"))
    with pytest.raises(WorkloadError, match=r"A workload is a tfaccel\.Workload, the name of a recipe.*Received: 3"):
        compress(keras.Sequential([layers.Dense(1)]), workload=3, out_dir=str(tmp_path / "out"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(CompressionError, match="holds something else than compressed models"):
        compress(keras.Sequential([layers.Dense(1)]), out_dir=str(tmp_path / "other"))


def test_missing_quantizer_is_named(logical_devices, tmp_path, monkeypatch):
    for name in ("litert_quantizer", "litert_quantizer.quantizer", "litert_quantizer.recipe"):
        monkeypatch.setitem(sys.modules, name, None)
    given = {"workload": cases.image_workload(), "out_dir": str(tmp_path / "out")}
    with pytest.raises(VersionError, match="Install it: pip install litert-quantizer"):
        compress(cases.image_model(), methods="weight_int4", **given, **QUICK)


def test_methods_with_training_need_a_workload(logical_devices, tmp_path):
    x = np.ones((4, 8, 8, 1), "float32")
    with pytest.raises(CompressionError, match=r"Fine-tuning \(qat\) needs a workload"):
        compress(cases.image_model(), methods="qat", representative_data=x, out_dir=str(tmp_path / "out"), **QUICK)
