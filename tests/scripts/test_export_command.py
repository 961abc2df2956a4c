"""`tfaccel export`: what it prints, and one clear line for every bad input, after which nothing is left."""

import json
import os
import signal
import zipfile

import pytest

from tfaccel.scripts import export as export_command


@pytest.fixture
def export(tmp_path, monkeypatch, capsys):
    """A function that runs the command in an empty folder: status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")

    def run(*arguments):
        status = export_command.run(["tfaccel export", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def write_lambda(path):
    layer = {"module": "keras.layers", "class_name": "Lambda", "config": {"name": "evil"}, "registered_name": None}
    model = {"module": "keras", "class_name": "Sequential", "config": {"name": "s", "layers": [layer]}}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(model))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model=line.keras"], "Give --out=DIR, a new folder for the export."),
        (["--out=out"], "Give --run_dir=DIR or --model=PATH. Received: neither."),
        (["--out=out", "--model=evil.keras", "--run_dir=x"], "Received: both."),
        (["--out=out", "--model=nowhere.keras"], "There is no file or folder nowhere.keras (--model)."),
        (["--out=out", "--run_dir=nowhere"], "nowhere is not a run directory: it has no config.json."),
        (["--out=out", "--model=evil.keras"], "evil.keras is refused: it holds a Lambda layer, which runs Python code"),
        (["--out=out", "--model=text.keras"], "text.keras is not a model in Keras's format"),
        (
            ["--out=out", "--model=evil.keras", "--formats=tflite"],
            "There is no format 'tflite'. Did you mean 'litert'?",
        ),
        (["--out=out", "--model=evil.keras", "--name=a/b"], "--name must have letters, digits"),
        (["--out=taken", "--model=evil.keras"], "taken is not empty and holds no export of tfaccel."),
        (["--out=out", "--model=evil.keras", "--version=0"], "`version` must be a whole number of at least 1."),
        (["--out=out", "--model=evil.keras", "--format=onnx"], "Unknown command line flag 'format'."),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(export, tmp_path, arguments, message):
    write_lambda(tmp_path / "evil.keras")
    (tmp_path / "text.keras").write_text("no archive")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/thesis.txt").write_text("mine")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    status, out, err = export(*arguments, "--quiet")
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("tfaccel export: ") and err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_files_are_listed_with_what_to_do_with_them(export, tmp_path, logical_devices):
    import keras

    keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(2)]).save(tmp_path / "line.keras")
    status, out, err = export("--model=line.keras", "--formats=litert", "--out=out")
    assert status == 0, err
    assert "Exported line to out" in out and "out/model.tflite" in out
    assert "run_litert.py" in out and "examples.npy" in out
    assert "Writing a LiteRT file" in err and "in a fresh process, and comparing them" in err
    status, out, err = export("--model=line.keras", "--formats=keras", "--out=again", "--json", "--quiet")
    assert (status, err) == (0, "")
    assert json.loads(out)["files"][0]["max_difference"] == 0.0


def test_end_in_the_middle_leaves_nothing(export, tmp_path, monkeypatch, logical_devices):
    import keras

    from tfaccel.exporting.export import Exporter

    keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(2)]).save(tmp_path / "line.keras")

    def end(self, *arguments, **settings):
        (folder,) = tmp_path.glob(".out-*")
        (folder / "model.keras").write_text("half")
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Exporter, "write", end)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        export("--model=line.keras", "--formats=keras", "--out=out", "--quiet")
    assert (caught.value.code, signal.getsignal(signal.SIGTERM)) == (143, before)
    assert [path.name for path in tmp_path.iterdir()] == ["line.keras"]


def test_onnx_is_written_by_keras_and_compared_by_onnxruntime(export, tmp_path, logical_devices):
    pytest.importorskip("tf2onnx")
    import keras

    keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(2)]).save(tmp_path / "line.keras")
    status, out, err = export("--model=line.keras", "--formats=onnx", "--out=out", "--json", "--quiet")
    assert status == 0, err
    (file,) = json.loads(out)["files"]
    assert (file["path"], file["max_difference"] < 1e-5) == ("model.onnx", True)
