"""Layers that TFMOT's wrappers could get wrong: what is trained is what comes back, in Keras or in a LiteRT file."""

import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LEGACY = {"TF_USE_LEGACY_KERAS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
QAT = ("separable:qat", "separable_1d:qat", "shared:qat", "masked:qat", "unscaled:qat", "attention:qat", "mobile:qat")
WEIGHTS = ("shared:prune", "masked:prune", "masked:cluster", "attention:prune", "attention:cluster")


def test_no_name_is_like_those_that_tf_keras_gives(logical_devices):
    import keras

    from tfaccel.compressing.tfmot.flat_model import flatten_model
    from tfaccel.compressing.tfmot.translation import tf_names

    layers = [keras.layers.Dense(4, name=name) for name in ("conv2d", "a b", "a_b")]
    names = tf_names(flatten_model(keras.Sequential([keras.Input((4,), name="x"), *layers])))
    assert names == {"conv2d": "own_conv2d", "a b": "own_a_b", "a_b": "own_a_b_1"}


@pytest.mark.slow
def test_what_is_trained_comes_back(run_python):
    child = run_python("tfmot_cases", *QAT, *WEIGHTS, cwd=HERE, env=LEGACY, timeout_seconds=900, fresh=True)
    found = {line["case"]: line for line in map(json.loads, child.stdout.splitlines())}
    assert list(found) == [*QAT, *WEIGHTS]
    for name in WEIGHTS:
        assert found[name]["difference"] < 1e-4, name
        kept = found[name]["values"] <= 4 if "cluster" in name else found[name]["zeros"] > 0.7
        assert kept, name
    assert (found["masked:prune"]["layers"], found["attention:cluster"]["layers"]) == (4, 3)
    for name in QAT:
        assert found[name]["difference"] < 0.03, name
        assert found[name]["spread"] > 0 or name == "mobile:qat", name  # untrained, it says the same of all rows
    assert found["separable:qat"]["float"] == found["separable_1d:qat"]["float"] == found["mobile:qat"]["float"] == []
    assert found["unscaled:qat"]["float"] == ["ADD", "MUL"]  # the normalization and Rescaling; no dense layer
    [note] = found["masked:qat"]["notes"]
    assert all(kind in note for kind in ("Embedding", "Dense", "Dropout", "LSTM"))  # they take or give a mask
