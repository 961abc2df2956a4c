"""What `compress` refuses, with the reason and before anything is written."""

import sys

import compress_cases as cases
import keras
import numpy as np
import pytest
from compress_cases import QUICK
from keras import layers

from tfaccel import compress
from tfaccel.errors import CompressionError, RunDirError, VersionError, WorkloadError


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


def odd():
    return [keras.Input((4,)), layers.Dense(8), cases.Odd(name="odd_one"), layers.Dense(2)]


def lookup():
    return [
        keras.Input((4,), dtype="int64"),
        layers.IntegerLookup(vocabulary=[1], name="words"),
        layers.Embedding(2, 2),
    ]


@pytest.mark.parametrize(
    ("of_model", "method", "named"),
    [(odd, "int8", r"'.*odd_one' \(Erfinv\)"), (lookup, "dynamic", r"'words' \(LookupTableFindV2\)")],
)
def test_layers_that_litert_cannot_take_are_named(logical_devices, tmp_path, of_model, method, named):
    model = keras.Sequential(of_model())
    data = np.ones((4, 4), model.inputs[0].dtype)
    with pytest.raises(CompressionError, match=rf"cannot convert these layers of the model: {named}"):
        compress(model, methods=method, representative_data=data, out_dir=str(tmp_path / "out"), **QUICK)
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
