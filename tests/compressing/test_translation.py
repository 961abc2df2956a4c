"""Keras 3 models as `tf_keras` models: the same outputs to 1e-5, weights there and back, clear refusals."""

import json

import pytest

from tfaccel.compressing.tfmot.translation_graph import FlatGraph, flat_graph, in_float32, tensors_in
from tfaccel.compressing.tfmot.translation_model import largest_difference
from tfaccel.errors import CompressionError

TOLERANCE = 1e-5
LEGACY = {"TF_USE_LEGACY_KERAS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
# Not known to TFMOT, or without an equal in tf_keras: kept as Keras 3 layers.
KEPT_LAYERS = {
    "Activation_hard_silu",
    "Activation_hard_sigmoid",
    "AlphaDropout",
    "EinsumDense",
    "Embedding_masked",
    "GroupNormalization",
    "Lambda",
    "Normalization",
    "PReLU",
    "Rescaling",
    "RandomFlip",
    "Resizing",
    "RMSNormalization",
    "RNN",
    "TimeDistributed",
    "UnitNormalization",
}
APPLICATIONS = ("MobileNetV2", "MobileNetV3Small", "ResNet50", "EfficientNetB0", "DenseNet121")
RECIPES = (
    "autoencoder",
    "image_classification",
    "object_detection",
    "recommendation",
    "sequence_forecasting",
    "summarization",
    "tabular_classification",
    "tabular_regression",
    "text_classification",
    "text_generation",
    "transfer_learning",
    "translation",
)
INPUT = {
    "class_name": "InputLayer",
    "config": {"name": "x", "batch_shape": [None, 4], "dtype": "float32"},
    "name": "x",
    "inbound_nodes": [],
}


def node(*sources):
    tensors = [
        {"class_name": "__keras_tensor__", "config": {"keras_history": [name, number, 0]}} for name, number in sources
    ]
    return {"args": [tensors[0] if len(tensors) == 1 else tensors], "kwargs": {}}


def layer(name, *nodes, kind="Dense", **config):
    return {"class_name": kind, "config": {"name": name, **config}, "name": name, "inbound_nodes": list(nodes)}


def functional(*layers, inputs="x", outputs="y"):
    config = {"name": "model", "layers": list(layers)}
    return {
        "class_name": "Functional",
        "config": {**config, "input_layers": [inputs, 0, 0], "output_layers": [outputs, 0, 0]},
    }


def translate(run_python, *cases):
    child = run_python("translation_cases", *cases, cwd=__file__.rpartition("/")[0], env=LEGACY, fresh=True)
    return {line["case"]: line for line in map(json.loads, child.stdout.splitlines())}


def test_models_in_models_are_opened():
    inner = functional(INPUT, layer("dense", node(("x", 0))), outputs="dense")
    inner |= {"name": "inner", "inbound_nodes": [node(("x", 0)), node(("inner", 0))]}
    inner["config"] |= {"name": "inner"}
    model = functional(INPUT, inner, layer("y", node(("inner", 0), ("inner", 1)), kind="Add"))
    graph = flat_graph(model)
    assert [call.path for call in graph.calls] == ["inner/dense", "inner/dense", "y"]
    assert [tensors_in(call.args) for call in graph.calls] == [["in:0"], ["0:0"], ["0:0", "1:0"]]
    assert FlatGraph.from_json(json.loads(json.dumps(graph.to_json()))) == graph


def test_training_is_handed_down():
    inner = functional(INPUT, layer("dropout", node(("x", 0)), kind="Dropout"), outputs="dropout")
    call = node(("x", 0)) | {"kwargs": {"training": False}}
    model = functional(INPUT, {**inner, "name": "y", "inbound_nodes": [call]})
    model["config"]["output_layers"] = ["y", 1, 0]  # Keras counts the node by which a model was made, but only here.
    graph = flat_graph(model)
    assert graph.calls[0].kwargs == {"training": False}


def test_half_precision_becomes_float32():
    policy = {"class_name": "DTypePolicy", "config": {"name": "mixed_float16"}}
    assert in_float32({"dtype": policy, "config": {"dtype": "bfloat16", "x": [{"dtype": "int32"}]}}) == {
        "dtype": "float32",
        "config": {"dtype": "float32", "x": [{"dtype": "int32"}]},
    }
    with pytest.raises(CompressionError, match=r"already quantized \(int8_from_float32\)"):
        in_float32({"dtype": {"class_name": "QuantizedDTypePolicy", "config": {"name": "int8_from_float32"}}})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"class_name": "ConditionalGan", "config": {}}, r"is a ConditionalGan, a subclassed model.* post-training"),
        ({"class_name": "Sequential", "config": {"layers": [layer("dense")]}}, r"has no input shape.*keras.Input"),
        (
            functional({**INPUT, "config": {**INPUT["config"], "ragged": True}}, layer("y", node(("x", 0)))),
            "'x' is spar",
        ),
        (functional(INPUT, layer("a", node(("y", 0))), layer("y", node(("a", 0)))), r"\['a', 'y'\] form a"),
    ],
)
def test_model_that_cannot_be_translated_is_refused(model, message):
    with pytest.raises(CompressionError, match=message):
        flat_graph(model)


def test_layer_without_its_name_is_refused():
    nameless = {"class_name": "Scale", "config": {"units": 3}}
    model = {"class_name": "Sequential", "config": {"layers": [INPUT, nameless]}}
    with pytest.raises(CompressionError, match=r"class Scale is saved without its name\. Let its `__init__` pass"):
        flat_graph(model)


def test_differences_are_seen():
    assert largest_difference([[1.0, 2.0]], [[1.0, 2.0]]) == 0.0
    assert largest_difference([[1.0, 2.1]], [[1.0, 2.0]]) == pytest.approx(0.05)
    assert largest_difference([[1.0, float("nan")]], [[1.0, 2.0]]) == float("inf")
    assert largest_difference([[1.0]], [[1.0, 2.0]]) == float("inf")


@pytest.mark.slow
def test_layers_and_models_give_the_same_in_both(run_python):
    found = translate(run_python, "layers", "merge", "attention", "mixed", "nested", "known")
    assert found.pop("known")["missing"] == []
    assert {name for name, result in found.items() if result["difference"] > TOLERANCE} == set()
    assert all(result["returned"] for result in found.values())
    names = set(found) - {"merge", "attention", "mixed", "nested"}
    assert len(names) > 70
    assert {name for name in names if found[name]["kept"]} == KEPT_LAYERS
    assert sorted(found["mixed"]["kept"]) == []
    assert {"multiply_1", "add_1", "get_item", "concatenate_1", "nan_to_num"} == set(found["merge"]["kept"])
    assert found["nested"]["layers"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", APPLICATIONS)
def test_applications_give_the_same(run_python, name):
    found = translate(run_python, f"application:{name}")[f"application:{name}"]
    assert found["difference"] <= TOLERANCE
    assert found["returned"]


@pytest.mark.slow
def test_recipes_give_the_same(run_python):
    for name in RECIPES:
        found = translate(run_python, f"recipe:{name}")[f"recipe:{name}"]
        assert found["difference"] <= TOLERANCE, name
        assert found["returned"], name


@pytest.mark.slow
def test_parts_of_the_gan_give_the_same_and_the_whole_is_refused_by_name(run_python):
    child = run_python(
        "translation_cases", "gan", "recipe:gan", cwd=__file__.rpartition("/")[0], env=LEGACY, check=False, fresh=True
    )
    found = [json.loads(line) for line in child.stdout.splitlines()]
    assert [line["case"] for line in found] == ["generator", "discriminator"]
    assert all(line["difference"] <= TOLERANCE and line["returned"] for line in found)
    assert (
        "CompressionError: The model is a ConditionalGan, a subclassed model, whose calls Keras does not serialize. "
        "Only functional and sequential models can be translated: build the same layers with "
        "keras.Model(inputs, outputs), or use a post-training method (float16, dynamic, int8)." in child.stderr
    )
