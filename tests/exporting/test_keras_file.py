"""Files that would run code, or overrun the machine, are refused before anything in them is used."""

import json
import re
import zipfile

import pytest

from tfaccel.errors import ExportError
from tfaccel.exporting.load_model import load_keras_model, place_of_run, url_name
from tfaccel.keras_file import check_keras_file


def dense(**fields):
    layer = {
        "module": "keras.layers",
        "class_name": "Dense",
        "config": {"name": "d", "units": 1},
        "registered_name": None,
    }
    return {**layer, **fields}


def make_model(*layers):
    return {"module": "keras", "class_name": "Sequential", "config": {"name": "s", "layers": list(layers)}}


@pytest.fixture
def keras_file(tmp_path):
    """A function that writes a `.keras` file of a configuration and other members."""

    def write(config, members=()):
        path = tmp_path / "model.keras"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("config.json", config if isinstance(config, (str, bytes)) else json.dumps(config))
            for name, content in members:
                archive.writestr(name, content)
        return path

    return write


def test_a_class_is_found_where_this_version_has_it(keras_file):
    moved = dense(module="tfaccel.models.token_loss", class_name="TokenCrossentropy")
    check_keras_file(keras_file(make_model({**moved, "registered_name": "tfaccel>TokenCrossentropy"})))
    with pytest.raises(ExportError, match=r"needs tfaccel.models.token_loss, which this version of tfaccel does not"):
        check_keras_file(keras_file(make_model({**moved, "registered_name": "tfaccel>Unknown"})))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (dense(class_name="Lambda"), "it holds a Lambda layer, which runs Python code from the file (layer 'd')."),
        (
            dense(config={"activation": {"class_name": "__lambda__", "config": {"value": "4wEA"}}}),
            "it holds a Python lambda, which is code from the file.",
        ),
        (dense(class_name="TFSMLayer"), "it holds a TFSMLayer, which runs a SavedModel from another place"),
        (dense(class_name="TorchModuleWrapper"), "it holds a TorchModuleWrapper, which unpickles"),
        (dense(module="os", class_name="system"), "refused: it uses Python's module 'os'"),
        (dense(module="tfaccel.scripts.main", class_name="main"), "names a class of the module 'tfaccel.scripts.main'"),
        (dense(module="kerasx.layers"), "If you trust that module, name it: --modules=kerasx.layers"),
        (dense(module="keras_hub.src.layers"), "name it: --modules=keras_hub"),
        (dense(module="tfaccel.models.nowhere"), "which this version of tfaccel does not have"),
        (
            dense(config={"fn": {"module": "subprocess", "class_name": "function", "config": "run"}}),
            "refused: it uses Python's module 'subprocess'",
        ),
    ],
)
def test_what_would_run_code_is_refused(keras_file, layer, message):
    with pytest.raises(ExportError, match=re.escape(message)):
        check_keras_file(keras_file(make_model(dense(), make_model(layer))))


def test_refused_lambda_is_not_run(keras_file, tmp_path):
    path = keras_file(make_model(dense(class_name="Lambda")))
    with pytest.raises(ExportError, match=r"is refused: .* No code was run\."):
        load_keras_model(path)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("../evil.py", "x")], "it holds '../evil.py', which would be written outside of its folder."),
        ([("/etc/evil", "x")], "it holds '/etc/evil', which would be written outside"),
        ([("assets/..\\evil", "x")], "which would be written outside"),
        ([("model.weights.h5", b"\0" * 2**22)], "'model.weights.h5' in it grows from"),
        ([(f"assets/{n}", b"\0" * 2**20) for n in range(300)], "model.keras is refused: it grows from"),
    ],
)
def test_files_that_overrun_are_refused(keras_file, members, message):
    path = keras_file(make_model(dense()), members)
    with pytest.raises(ExportError, match=re.escape(message)) as caught:
        check_keras_file(path)
    assert str(caught.value).startswith(f"{path} is refused: ")


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            dense(
                config={
                    "name": "d",
                    "units": 1,
                    "activation": {
                        "module": "keras.config",
                        "class_name": "function",
                        "config": "enable_unsafe_deserialization",
                    },
                }
            ),
            "Cannot deserialize `keras.config.enable_unsafe_deserialization` because it is not a modeling function.",
        ),
        (
            dense(
                config={
                    "name": "d",
                    "units": 1,
                    "activation": {
                        "module": "builtins",
                        "class_name": "function",
                        "config": "eval",
                        "registered_name": "eval",
                    },
                }
            ),
            "Could not locate function 'eval'.",
        ),
        (
            dense(class_name="StringLookup", config={"name": "d", "vocabulary": "/etc/passwd"}),
            "Requested the loading of a vocabulary file outside of the model archive.",
        ),
        (dense(module="numpy", class_name="load", config={"file": "/etc/passwd"}), "Could not locate class 'load'."),
    ],
)
def test_what_keras_refuses_is_said_in_its_words(keras_file, logical_devices, layer, message):
    path = keras_file(make_model(layer))
    with pytest.raises(ExportError, match=re.escape(f"Keras cannot load {path}: {message}")) as caught:
        load_keras_model(path)
    assert "object config" not in str(caught.value)


@pytest.mark.parametrize("config", ["{", b"\xff\xfe", "[" * 100_000])
def test_broken_configuration_is_no_model(keras_file, config):
    with pytest.raises(
        ExportError, match=r"model\.keras is not a model in Keras's format \(.*\)\. Save it with model\.save"
    ):
        check_keras_file(keras_file(config))


def test_other_files_are_no_models(tmp_path):
    (tmp_path / "text.keras").write_text("no archive")
    with pytest.raises(ExportError, match="is not a model in Keras's format"):
        load_keras_model(tmp_path / "text.keras")
    with zipfile.ZipFile(tmp_path / "empty.keras", "w"):
        pass
    with pytest.raises(ExportError, match="is not a model in Keras's format"):
        load_keras_model(tmp_path / "empty.keras")
    with pytest.raises(ExportError, match=r"old\.h5 is refused: models in HDF5 files may run code"):
        load_keras_model(tmp_path / "old.h5")
    with pytest.raises(ExportError, match=r"There is no file .*nowhere"):
        load_keras_model(tmp_path / "nowhere.keras")
    with pytest.raises(ExportError, match="Cannot import the module 'no_such_module_here'"):
        load_keras_model(tmp_path / "text.keras", modules=["no_such_module_here"])


def test_classes_of_keras_and_of_named_modules_are_taken(keras_file):
    path = keras_file(
        make_model(dense(), dense(module="my_layers.blocks"), dense(module=None), dense(module="builtins"))
    )
    check_keras_file(path, modules=["my_layers"])
    check_keras_file(keras_file(make_model(dense(module="tfaccel.data.raw_input"))))


def test_run_directory_that_is_none_is_refused(tmp_path):
    with pytest.raises(ExportError, match=r"is not a run directory: it has no config\.json"):
        place_of_run(tmp_path)
    (tmp_path / "config.json").write_text('{"recipe": "my lines/2"}')
    with pytest.raises(ExportError, match=r"has no model\.keras yet"):
        place_of_run(tmp_path)
    (tmp_path / "model.keras").write_text("")
    with pytest.raises(ExportError, match=r"has no result\.json yet"):
        place_of_run(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    place = place_of_run(tmp_path)
    assert (place.name, place.raw_input) == ("my_lines_2", None)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ExportError, match=r"config\.json cannot be read"):
        place_of_run(tmp_path)


@pytest.mark.parametrize(("text", "name"), [("a b", "a_b"), ("../x", "x"), ("", "model"), ("\u00e4\u00f6", "model")])
def test_names_fit_into_addresses(text, name):
    assert url_name(text) == name


def test_layers_that_declare_more_weights_than_the_file_holds_are_refused(tmp_path, keras_file, logical_devices):
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, name="d")])
    model.save(tmp_path / "small.keras")
    with zipfile.ZipFile(tmp_path / "small.keras") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    assert load_keras_model(tmp_path / "small.keras").count_params() == 4
    large = members.pop("config.json").decode().replace('"units": 2', '"units": 150000000')
    original = keras.layers.Layer.add_weight
    with pytest.raises(ExportError, match=r"declare more weights than it holds. Layer 'd' asks for 150,000,000, and"):
        load_keras_model(keras_file(large, list(members.items())))
    assert keras.layers.Layer.add_weight is original


def test_states_of_recurrent_layers_count_as_weights(tmp_path, keras_file, logical_devices):
    import keras

    inputs = keras.Input((3, 2), batch_size=7)
    keras.Model(inputs, keras.layers.GRU(1, stateful=True, name="gru")(inputs)).save(tmp_path / "small.keras")
    with zipfile.ZipFile(tmp_path / "small.keras") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    large = members.pop("config.json").decode().replace("[7, 3, 2]", "[1500000000, 3, 2]")
    original = keras.layers.RNN.get_initial_state
    with pytest.raises(ExportError, match=r"declare more weights than it holds. Layer 'gru' asks for 1,500,000,000, "):
        load_keras_model(keras_file(large, list(members.items())))
    assert keras.layers.RNN.get_initial_state is original
