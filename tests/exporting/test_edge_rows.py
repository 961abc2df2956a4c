"""Exported files are compared on the run's own data and on edge values, and a file that differs there is marked."""

import json

import numpy as np
import pytest

from tfaccel.exporting.comparison import edge_cases
from tfaccel.exporting.export import export

pytestmark = pytest.mark.usefixtures("logical_devices")


def integer_model(operation):
    import keras

    class Integers(keras.layers.Layer):
        def call(self, x):
            return operation(x)

        def compute_output_shape(self, shape):
            return shape

    inputs = keras.Input((3,), dtype="int32", name="numbers")
    return keras.Model(inputs, Integers()(inputs))


@pytest.mark.parametrize("name", ["floor_divide", pytest.param("mod", marks=pytest.mark.slow)])
def test_integers_that_a_format_divides_otherwise_mark_its_file(tmp_path, name, caplog, monkeypatch):
    import keras

    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")  # which tf2onnx changes

    model = integer_model(lambda x: getattr(keras.ops, name)(x, 4))
    result = export(model, ["saved_model", "litert", "onnx"], out=tmp_path / "out", name="numbers")
    marks = {file.format: file.differs for file in result.files}
    assert marks["saved_model"] == ""
    assert marks["onnx"].startswith("For negative values of numbers: model.onnx: output 0 differs by ")
    assert f"model.onnx differs from the Keras model. {marks['onnx']}" in caplog.text
    found = json.loads((tmp_path / "out" / "export.json").read_text())["files"]
    assert {file["format"]: file["differs"] for file in found} == marks


def test_a_format_that_treats_nan_otherwise_marks_its_file(tmp_path, monkeypatch):
    import keras

    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")  # which tf2onnx changes

    class Positive(keras.layers.Layer):
        def call(self, x):
            return keras.ops.where(x > 0, x, -1.0)

    inputs = keras.Input((4,), name="x")
    models = {"where": Positive()(inputs), "layers": keras.layers.Dense(3, activation="relu")(inputs)}
    for name, outputs in models.items():
        result = export(keras.Model(inputs, outputs), ["onnx"], out=tmp_path / name, name=name)
        expected = "For missing values of x: model.onnx: output 0 is NaN in other places" if name == "where" else ""
        assert result.files[0].differs.startswith(expected)
        assert bool(result.files[0].differs) == bool(expected)


def test_a_file_that_fails_on_edge_values_is_marked(tmp_path):
    import keras

    model = integer_model(lambda x: keras.ops.floor_divide(x, 4))
    model.compile()
    from tfaccel.exporting import comparison

    ordinary = export(model, ["saved_model"], out=tmp_path / "out", name="numbers").files[0]
    assert ordinary.differs == ""
    found = {"error:": np.array("RuntimeError: no")}
    file = comparison.Comparison("onnx", tmp_path / "model.onnx", {}, {"0": np.zeros(1)})
    assert comparison._compared(file, {"0": np.zeros(1)}, found)[2] == (
        "For edge values, model.onnx fails: RuntimeError: no"
    )


def test_cases_are_those_that_the_model_takes():
    def outputs(rows):
        if rows["tokens"].min() < 0 or rows["tokens"].max() >= 50:
            raise ValueError
        return [rows["tokens"]]

    rows = {"tokens": np.ones((4, 2), np.int32), "x": np.ones((4, 1), np.float32), "flag": np.ones((4, 1), bool)}
    cases = {case.name: case.rows for case in edge_cases(rows, outputs, highest=50)}
    assert list(cases) == [
        "negative values of x",
        *(f"zero values of {names}" for names in ("tokens, x, flag", "tokens", "x", "flag")),
        *("positive values of x", "mixed values of x", "largest values of x", "largest values of flag"),
        *("last values of tokens, x, flag", "last values of tokens"),
        *("missing values of tokens, x, flag", "missing values of x"),
    ]
    assert (cases["negative values of x"]["x"] < 0).all()
    assert (cases["negative values of x"]["tokens"] == 1).all()
    assert (cases["last values of tokens"]["tokens"] == 49).all()
    assert cases["largest values of x"]["x"].min() > np.iinfo(np.int32).max
    assert not cases["zero values of flag"]["flag"].any()
    unsigned = {"x": np.ones((4, 1), np.uint8)}
    names = [case.name for case in edge_cases(unsigned, lambda rows: [rows["x"]])]
    assert names == [f"{kind} values of x" for kind in ("zero", "positive", "largest")]


def test_values_of_both_signs_halves_and_extremes_are_among_them():
    rows = {"x": np.ones((4, 8), np.float32), "i": np.ones((4, 8), np.int32)}
    cases = {case.name: case.rows for case in edge_cases(rows, lambda rows: [rows["x"]])}
    mixed = cases["mixed values of x"]["x"]
    assert mixed.min() < 0 < mixed.max()
    assert (np.abs(mixed) % 1 == 0.5).all()
    assert 0 < np.isnan(cases["missing values of x"]["x"]).mean() < 1
    for kind in ("largest", "smallest"):
        found = cases[f"{kind} values of i"]["i"]
        assert (found.astype(np.float32).astype(np.int64) != found).any()
    assert (cases["smallest values of i"]["i"] < -(2**31) + 100).all()


def test_texts_have_edge_values_too():
    rows = {"color": np.array([[b"red"], [b"blue"]], dtype=object), "x": np.ones((2, 1), np.float32)}
    cases = {case.name: case.rows for case in edge_cases(rows, lambda rows: [rows["x"]])}
    assert set(cases["zero values of color"]["color"].ravel()) == {b""}
    assert cases["negative values of color, x"]["color"][0, 0].decode() == "\u00c4 \u4e2d"
    assert (cases["negative values of x"]["color"] == rows["color"]).all()


def test_a_model_with_inputs_of_every_dtype_is_compared(tmp_path):
    import keras

    kinds = {"color": "string", "size": "float32", "code": "uint8", "is_new": "bool", "place": "int64"}
    shapes = {name: () if dtype == "uint8" else (1,) for name, dtype in kinds.items()}
    inputs = {name: keras.Input(shapes[name], dtype=dtype, name=name) for name, dtype in kinds.items()}
    places = keras.layers.StringLookup(vocabulary=["red", "blue"])(inputs["color"])
    numbers = [inputs["size"], inputs["code"][:, None], inputs["is_new"], inputs["place"] % 7, places]
    x = keras.layers.Concatenate()([keras.ops.cast(one, "float32") for one in numbers])
    model = keras.Model(inputs, keras.layers.Dense(2)(x))
    sample = {
        "color": np.array([["red"], ["blue"], ["\u00e4"], [""]]),
        "size": np.ones((4, 1)),
        "code": np.array([1, 2, 3, 250], np.uint8),
        "is_new": np.array([[True], [False]] * 2),
        "place": np.arange(4)[:, None],
    }
    result = export(model, ["keras", "saved_model"], out=tmp_path / "out", name="kinds", sample=sample)
    assert [(file.max_difference < 1e-5 < file.max_output, file.differs) for file in result.files] == [(True, "")] * 2


def test_integers_are_compared_exactly():
    from tfaccel.errors import ExportError
    from tfaccel.exporting.comparison import largest_difference

    wanted = {"a": np.array([2_000_000_000, 1])}
    with pytest.raises(ExportError, match=r"differs by 1 from"):
        largest_difference({"a": np.array([2_000_000_000, 2])}, wanted, "f")


def test_scripts_keep_rows_for_their_exports(tmp_path):
    import keras
    import tensorflow as tf

    import tfaccel
    from tfaccel.exporting.sample_rows import rows_of_run

    x, y = np.arange(48.0).reshape(24, 2), np.zeros((24, 1))
    words = np.array([["a"], ["b\u00e4"]] * 12)

    def build_model():
        inputs = [keras.Input((1,), dtype="string"), keras.Input((2,))]
        places = keras.ops.cast(keras.layers.StringLookup(vocabulary=["a"])(inputs[0]), "float32")
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()([places, inputs[1]])))

    compiled = {"optimizer": "sgd", "loss": "mse"}
    data = tf.data.Dataset.from_tensor_slices(((words, x), y)).batch(8)
    tfaccel.train(build_model, compiled, data, epochs=1, run_dir=tmp_path / "run", verbose=0)
    found = rows_of_run(tmp_path / "run")
    assert [text.decode() for text in found[0].ravel()] == ["a", "b\u00e4"] * 2
    assert np.array_equal(found[1], x[:4])
    result = tfaccel.export(tmp_path / "run", ["keras", "saved_model"], out=tmp_path / "out")
    assert [file.max_difference < 1e-5 < file.max_output for file in result.files] == [True, True]


@pytest.mark.slow
def test_the_rows_are_of_the_runs_own_data(tmp_path, run_python):
    child = run_python(
        f"""
from tfaccel import train, load_run
from tfaccel.planning.load_workload import load_workload
from tfaccel.exporting.sample_rows import rows_of_run
from tfaccel.exporting.export import Exporter
from tfaccel.exporting.load_model import place_of_run, load_keras_model
import numpy as np, pathlib
from tfaccel.recipes.image_classification import workload
folder = pathlib.Path({str(tmp_path)!r})
workload.run(run_dir=folder / "run", epochs=1, verbose=0)
rows = rows_of_run(folder / "run")
(folder / "out").mkdir()
model = load_keras_model(folder / "run" / "model.keras")
exporter = Exporter(model, place_of_run(folder / "run"), folder / "out", own_rows=rows)
found = next(iter(exporter._rows.values()))
expected = next(iter(workload().validation_data(4)))[0].numpy()
assert np.array_equal(found, np.round(expected)), (found.shape, expected.shape)
assert rows_of_run(folder) is None
wrong = Exporter(model, place_of_run(folder / "run"), folder / "out", own_rows=np.zeros((4, 3)))
assert next(iter(wrong._rows.values())).shape == found.shape
"""
    )
    assert child.returncode == 0


def test_ids_of_eight_bits_are_compared_up_to_the_largest(tmp_path):
    import keras

    inputs = keras.Input((3,), dtype="uint8", name="ids")
    model = keras.Model(inputs, keras.layers.Embedding(300, 2)(inputs))
    (file,) = export(model, ["keras"], out=tmp_path / "out", name="ids").files
    assert (file.differs, file.max_difference) == ("", 0.0)


def test_a_model_that_takes_no_random_rows_asks_for_a_sample(tmp_path):
    import keras

    from tfaccel.errors import ExportError

    inputs = keras.Input((3,), dtype="int64")
    ids = keras.layers.IntegerLookup(vocabulary=[5, 7, 9], num_oov_indices=0)(inputs)
    model = keras.Model(inputs, keras.layers.Embedding(3, 2)(ids))
    message = (
        r"cannot be called on rows that tfaccel makes .* all inputs should be in vocabulary.*export\(model, sample="
    )
    with pytest.raises(ExportError, match=message):
        export(model, ["keras"], out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    export(model, ["keras"], out=tmp_path / "out", sample=np.full((4, 3), 7))


def test_a_model_with_a_lookup_is_exported_or_refused_by_name(tmp_path):
    import keras

    from tfaccel.errors import ExportError

    inputs = keras.Input((3,), dtype="int64", name="ids")
    lookup = keras.layers.IntegerLookup(vocabulary=[5, 7, 9], name="lookup")
    x = keras.layers.Flatten()(keras.layers.Embedding(5, 4)(lookup(inputs)))
    model = keras.Model(inputs, keras.layers.Dense(2)(x))
    sample = np.array([[5, 7, 9], [9, 1, 2], [5, 5, 5], [7, 0, -1]])
    result = export(model, ["keras", "saved_model"], out=tmp_path / "out", name="ids", sample=sample)
    assert [file.max_difference < 1e-5 < file.max_output for file in result.files] == [True, True]
    with pytest.raises(ExportError, match=r"LiteRT does not support these layers of the model: 'lookup'"):
        export(model, ["litert"], out=tmp_path / "other", name="ids", sample=sample)
    with pytest.raises(
        ExportError, match=r"ONNX does not support these parts of the model: 'lookup' \(a lookup table\)"
    ):
        export(model, ["onnx"], out=tmp_path / "other", name="ids", sample=sample)
    names = keras.layers.StringLookup(vocabulary=["a", "b", "ü"], invert=True, num_oov_indices=0, name="names")
    model = keras.Model(inputs, {"ids": inputs, "names": names(inputs)})
    result = export(model, ["keras", "saved_model"], out=tmp_path / "texts", name="texts", sample=sample % 3)
    assert [file.max_difference for file in result.files] == [0.0, 0.0]
