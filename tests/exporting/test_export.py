"""Exported files do what the model does, appear whole or not at all, and say what is wrong with a model."""

import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from export_models import IMAGES, TEXTS, image_model, pixels, refused_model, several_model, text_model

from tfaccel.errors import ExportError
from tfaccel.exporting.export import check_formats, export, export_folder, next_version


@pytest.fixture(scope="module", autouse=True)
def tensorflow(logical_devices):
    """TensorFlow, started as the tests want it."""


@pytest.fixture(scope="module")
def image_run(tmp_path_factory):
    """A run directory with a model of images."""
    folder = tmp_path_factory.mktemp("run")
    image_model().save(folder / "model.keras")
    (folder / "config.json").write_text('{"recipe": "small images"}')
    (folder / "result.json").write_text("{}")
    (folder / "raw_input.json").write_text(json.dumps(IMAGES.to_json()))
    return folder


@pytest.fixture(scope="module")
def exported(image_run, tmp_path_factory):
    """What `export` made of it, in three formats."""
    return export(image_run, ["litert", "keras", "saved_model"], out=tmp_path_factory.mktemp("exports") / "out")


def in_folder(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_every_format_is_written_and_compared(exported):
    from pathlib import Path

    folder = Path(exported.folder)
    assert in_folder(folder) == [
        "export.json",
        "model.keras",
        "model.tflite",
        "run_litert.py",
        "saved_model/1/assets.extra/tf_serving_warmup_requests",
        "saved_model/1/assets.extra/tfaccel.json",
        "saved_model/1/fingerprint.pb",
        "saved_model/1/saved_model.pb",
        "saved_model/1/variables/variables.data-00000-of-00001",
        "saved_model/1/variables/variables.index",
        "tensorflow_serving.sh",
    ]
    assert (exported.name, exported.version) == ("small_images", 1)
    assert [file.format for file in exported.files] == ["keras", "saved_model", "litert"]
    assert all(file.max_difference <= 1e-5 < file.max_output for file in exported.files)
    assert exported.files[1].signatures == ("serving_default", "serving_raw")
    assert json.loads((folder / "export.json").read_text()) == json.loads(json.dumps(exported.to_json()))
    assert (folder / "model.keras").stat().st_size == exported.files[0].num_bytes


def test_command_for_tensorflow_serving_runs_this_folder(exported):
    from pathlib import Path

    program = Path(exported.folder, "tensorflow_serving.sh").read_text()
    for part in ("docker run", "-e MODEL_NAME=small_images", "target=/models/small_images", "tensorflow/serving"):
        assert part in program
        assert part in exported.commands["tensorflow_serving"]
    assert subprocess.run(["sh", "-n", Path(exported.folder, "tensorflow_serving.sh")], check=False).returncode == 0


def test_warm_up_requests_are_prediction_logs(exported):
    """Read field by field, by the numbers in TensorFlow Serving's own .proto files."""
    from pathlib import Path

    import tensorflow as tf

    from tfaccel.exporting.saved_model_files import read_warm_up_requests

    folder = Path(exported.folder, "saved_model/1")
    records = list(tf.data.TFRecordDataset(str(folder / "assets.extra/tf_serving_warmup_requests")).as_numpy_iterator())
    request = fields(fields(fields(records[0])[6][0])[1][0])
    spec = fields(request[1][0])
    assert (spec[1], spec[3]) == ([b"small_images"], [b"serving_default"])
    entry = fields(request[2][0])
    proto = type(tf.make_tensor_proto(0)).FromString(entry[2][0])
    tensor = tf.make_ndarray(proto)
    assert (entry[1], tensor.shape, len(records)) == ([b"pixels"], (1, 8, 8, 1), 4)
    found = read_warm_up_requests(folder)
    assert [(name, len(next(iter(arrays.values())))) for name, arrays in found] == [
        ("serving_default", 1),
        ("serving_default", 4),
        ("serving_raw", 1),
        ("serving_raw", 4),
    ]
    assert found[2][1]["image_bytes"][0].startswith(b"\x89PNG")


def fields(message):
    """Number -> contents of the length-delimited fields of a protocol buffer."""
    found, place = {}, 0
    while place < len(message):
        key, place = varint(message, place)
        assert key & 7 == 2
        length, place = varint(message, place)
        found.setdefault(key >> 3, []).append(message[place : place + length])
        place += length
    return found


def varint(message, place):
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def test_litert_file_runs_with_nothing_but_its_runtime(exported, tmp_path):
    from pathlib import Path

    folder = Path(exported.folder)
    np.save(tmp_path / "rows.npy", pixels(3))
    code = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    blocked = "import sys\nfor name in ('tensorflow', 'keras', 'tfaccel'): sys.modules[name] = None\n"
    program, model = str(folder / "run_litert.py"), str(folder / "model.tflite")

    def run(*arguments):
        command = [sys.executable, "-c", blocked + code, program, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    ended = run(model, "rows.npy")
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    logits = image_model()(pixels(3)).numpy()
    assert np.allclose([line["logits"] for line in lines], logits, atol=1e-5)
    assert [line["class"] for line in lines] == [IMAGES.class_names[row] for row in logits.argmax(axis=1)]
    assert json.loads(run(model).stdout) == {
        "inputs": {"pixels": [[1, 8, 8, 1], "float32"]},
        "classes": ["zero", "one", "two"],
    }
    np.save(tmp_path / "wrong.npy", pixels(3)[:, :5])
    wrong = run(model, "wrong.npy")
    assert (wrong.returncode, "input 'pixels' takes rows of shape (8, 8, 1)" in wrong.stderr) == (1, True)


def test_litert_metadata_stands_where_task_libraries_look(exported):
    from importlib import import_module
    from pathlib import Path

    from tfaccel.exporting.litert_program import read_labels

    path = Path(exported.folder, "model.tflite")
    schema = import_module("ai_edge_litert.schema_py_generated")
    model = schema.Model.GetRootAs(path.read_bytes(), 0)
    names = {model.Metadata(place).Name(): model.Metadata(place).Buffer() for place in range(model.MetadataLength())}
    content = model.Buffers(names[b"TFLITE_METADATA"]).DataAsNumpy().tobytes()
    assert content[4:8] == b"M001"
    for text in (b"small_images", b"labels.txt", b"pixels", b"logits", b"8 x 8 x 1"):
        assert text in content
    assert read_labels(path) == ["zero", "one", "two"]
    assert zipfile.ZipFile(path).namelist() == ["labels.txt", "raw_input.json"]


@pytest.mark.slow
def test_second_export_is_the_next_version(image_run, exported):
    from pathlib import Path

    folder = Path(exported.folder)
    result = export(image_run, ["saved_model"], out=folder, name="other")
    assert (result.version, result.name) == (2, "other")
    assert sorted(path.name for path in (folder / "saved_model").iterdir()) == ["1", "2"]
    assert (folder / "model.tflite").is_file()
    with pytest.raises(ExportError, match="holds version 2 already"):
        export(image_run, ["saved_model"], out=folder, version=2)


@pytest.mark.slow
def test_half_precision_becomes_float32_and_all_inputs_and_outputs_are_kept(tmp_path):
    import keras

    layers = [keras.Input((4,)), keras.layers.Dense(3, dtype="mixed_bfloat16"), keras.layers.Dense(2, dtype="float32")]
    result = export(keras.Sequential(layers, name="half"), ["keras", "litert"], out=tmp_path / "half")
    assert result.name == "half"
    assert 0 < result.float32_difference < 0.1
    assert result.files[1].max_difference < 1e-5
    several = export(several_model(), ["keras", "saved_model", "litert"], out=tmp_path / "several", name="several")
    assert [file.format for file in several.files] == ["keras", "saved_model", "litert"]


@pytest.mark.slow
def test_text_model_has_its_vocabulary_inside(tmp_path):
    import tensorflow as tf

    run = tmp_path / "run"
    run.mkdir()
    text_model().save(run / "model.keras")
    (run / "config.json").write_text('{"recipe": "texts"}')
    (run / "result.json").write_text("{}")
    (run / "raw_input.json").write_text(json.dumps(TEXTS.to_json()))
    result = export(run, ["saved_model"], out=tmp_path / "out")
    assert result.files[0].signatures == ("serving_default", "serving_raw")
    loaded = tf.saved_model.load(str(tmp_path / "out/saved_model/1"))
    label = loaded.signatures["serving_raw"](text=tf.constant(["It's nice"]))["label"].numpy()[0]
    assert label.decode() in TEXTS.class_names


@pytest.mark.slow
def test_layer_that_litert_cannot_take_is_named_and_nothing_is_left(tmp_path):
    with pytest.raises(ExportError, match=r"LiteRT does not support these layers of the model: 'odd' \(Erfinv\)"):
        export(refused_model(), ["saved_model", "litert"], out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_part_that_onnx_cannot_take_is_named_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")  # tf2onnx sets it when it is imported
    pytest.importorskip("tf2onnx")
    with pytest.raises(ExportError, match=r"ONNX does not support these parts of the model: '.*odd.*' \(Erfinv\)"):
        export(refused_model(), ["onnx"], out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_augmentation_layers_do_nothing_in_an_onnx_file(tmp_path, monkeypatch):
    import keras

    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")  # tf2onnx sets it when it is imported
    pytest.importorskip("tf2onnx")
    layers = [keras.layers.RandomFlip(), keras.layers.RandomRotation(0.3), keras.layers.RandomContrast(0.5)]
    inner = keras.Sequential([keras.Input((8, 8, 3)), *layers])
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), inner, keras.layers.GaussianNoise(1.0), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    (file,) = export(model, ["onnx"], out=tmp_path / "out").files
    assert file.max_difference < 1e-5  # of the file loaded in another process, on random images
    flipped = [model.layers[0].layers[0](np.arange(192.0).reshape(1, 8, 8, 3)) for _ in range(8)]
    assert len({float(keras.ops.sum(image[0, 0])) for image in flipped}) > 1  # the model's own layer still augments


def test_own_class_of_a_script(tmp_path, monkeypatch):
    import keras

    (tmp_path / "own_scale.py").write_text(
        "import keras\n\nclass OwnScale(keras.layers.Layer):\n    def call(self, x):\n        return 2 * x\n"
    )
    (tmp_path / "own_other.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    from own_scale import OwnScale

    OwnScale.__module__ = "__main__"  # as in the script that trained it
    run = tmp_path / "run"
    run.mkdir()
    keras.Sequential([keras.Input((2,)), OwnScale(), keras.layers.Dense(1)]).save(run / "model.keras")
    (run / "config.json").write_text('{"recipe": "own"}')
    (run / "result.json").write_text("{}")
    OwnScale.__module__ = "own_scale"
    with pytest.raises(ExportError, match=r"holds your class 'OwnScale', which is not imported .* --modules=mine"):
        export(run, ["saved_model"], out=tmp_path / "out")
    with pytest.raises(ExportError, match=r"'OwnScale', which no module that was named defines.*modules=own_other"):
        export(run, ["saved_model"], out=tmp_path / "out", modules=["own_other"])
    assert not (tmp_path / "out").exists()
    assert export(run, ["saved_model"], out=tmp_path / "out", modules=["own_scale"]).files[0].max_difference == 0


def test_file_that_does_something_else_when_it_is_loaded_is_not_left(tmp_path, monkeypatch, exported):
    """What `export` writes is really loaded: here a file of other weights, and one that is cut off, take its place."""
    from pathlib import Path

    model = image_model()
    model.layers[-1].bias.assign([1.0, 2.0, 3.0])
    old = Path(exported.folder, "model.tflite").read_bytes()
    for content, message in [
        (old, "model.tflite: output logits differs by 3 from the Keras model's"),
        (old[:1000], r"model.tflite cannot be used in a fresh process: it ended with status 1\. Its last words: "),
    ]:
        monkeypatch.setattr(
            "tfaccel.exporting.export.litert_content", lambda *arguments, content=content, **named: content
        )
        with pytest.raises(ExportError, match=message):
            export(model, ["litert"], out=tmp_path / "out")
        assert list(tmp_path.iterdir()) == []


def test_inputs_may_have_the_names_of_numpys_arguments(tmp_path):
    import keras

    inputs = [keras.Input((2,), name=name) for name in ("file", "allow_pickle")]
    model = keras.Model(inputs, {"file": keras.layers.Dense(1)(keras.layers.Concatenate()(inputs))})
    result = export(model, ["saved_model", "litert"], out=tmp_path / "out", name="named")
    assert [(file.max_difference < 1e-5 < file.max_output, file.differs) for file in result.files] == [(True, "")] * 2


def test_what_does_not_do_what_the_model_does_is_refused(tmp_path):
    from tfaccel.exporting.comparison import largest_difference

    wanted = {"a": np.array([1.0, 200.0], np.float32), "label": np.array([b"x"])}
    assert largest_difference({**wanted, "a": wanted["a"] + 0.01}, wanted, "f")[0] == pytest.approx(0.01, rel=1e-2)
    for found, message in [
        ({**wanted, "a": wanted["a"] + 0.1}, r"f: output a differs by 0\.1 from the Keras model's"),
        ({**wanted, "a": np.array([np.nan, 200.0])}, "output a is NaN in other places"),
        ({**wanted, "label": np.array([b"y"])}, "output label is"),
        ({**wanted, "a": np.zeros((1, 2))}, "output a has shape"),
        ({"a": wanted["a"]}, "has the outputs a; the Keras model has a, label"),
    ]:
        with pytest.raises(ExportError, match=message):
            largest_difference(found, wanted, "f")


def test_folder_of_something_else_is_left_alone(tmp_path, image_run):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ExportError, match="is not empty and holds no export of tfaccel"):
        export(image_run, out=tmp_path)
    with pytest.raises(ExportError, match="--out is a file"):
        next_version(tmp_path / "thesis.txt", None)
    with pytest.raises(ExportError, match="Cannot write to"), export_folder(tmp_path / "thesis.txt" / "out"):
        pass
    with pytest.raises(ExportError, match="`version` must be a whole number of at least 1"):
        next_version(tmp_path / "new", 0)
    assert in_folder(tmp_path) == ["thesis.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"formats": ["onxx"]}, "There is no format 'onxx'. Did you mean 'onnx'?"),
        ({"formats": []}, "Name at least one format"),
        ({"name": "a/b"}, "A model's name has letters, digits"),
    ],
)
def test_bad_arguments_are_named(tmp_path, image_run, arguments, message):
    with pytest.raises(ExportError, match=message.replace("?", r"\?")):
        export(image_run, out=tmp_path / "out", **arguments)


def test_only_models_are_exported(tmp_path):
    with pytest.raises(ExportError, match=r"Give a run directory, a \.keras file, or a built Keras model"):
        export(3, out=tmp_path / "out")
    assert check_formats(["onnx", "keras", "onnx"]) == ["keras", "onnx"]
