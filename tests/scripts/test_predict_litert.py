"""`tfaccel predict` with LiteRT files: they predict as their runs, and those that do not fit are named."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from predict_runs import IMAGES, TABLE, TEXTS, get_rows, in_empty_folder, write_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory, logical_devices):
    return write_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def predict(tmp_path, monkeypatch, capsys):
    return in_empty_folder(tmp_path, monkeypatch, capsys)


def write_litert(path, run, raw_input, rows):
    """A run's model as a LiteRT file, which says what its inputs are made of where `raw_input` is given."""
    import keras

    from tfaccel.compressing.call_signature import get_signature
    from tfaccel.compressing.litert.file import make_archive
    from tfaccel.compressing.litert.post_training import make_converter

    model = keras.models.load_model(run / "model.keras")
    with make_converter(model, get_signature(model, rows)) as converter:
        path.write_bytes(converter.float_content + make_archive(raw_input))


@pytest.mark.slow
def test_litert_files_predict_as_their_runs(predict, runs, tmp_path):
    generator = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(3):
        Image.fromarray(generator.integers(0, 255, (9, 7), dtype=np.uint8)).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "photos" / "9.png").write_text("no image")
    (tmp_path / "texts.txt").write_text("good good\nbad\n")
    (tmp_path / "rows.csv").write_text("kind,age\ncat,9\ndog,0.5\ncat,\n,\n")
    pixels = np.zeros((1, 8, 8, 1), "float32")
    table_rows = {"numbers": np.zeros((1, 1), "float32"), "categories": np.zeros((1, 1), "int32")}
    cases = [
        ("images", IMAGES, pixels, "photos"),
        ("texts", TEXTS, np.zeros((1, 4), "int32"), "texts.txt"),
        ("table", TABLE, table_rows, "rows.csv"),
    ]
    for name, raw_input, rows, given in cases:
        write_litert(tmp_path / f"{name}.tflite", runs / name, raw_input, rows)
        expected = predict(f"--run_dir={runs}/{name}", f"--input={given}", "--output=run.jsonl", "--quiet")
        found = predict(f"--model={name}.tflite", f"--input={given}", "--output=litert.jsonl", "--quiet")
        assert found[0] == expected[0]
        assert found[2].splitlines()[-1:] == expected[2].splitlines()[-1:]
        lines = [
            [json.loads(line) for line in (tmp_path / f"{one}.jsonl").read_text().splitlines()]
            for one in ("litert", "run")
        ]
        assert len(lines[0]) == len(lines[1]) > 1
        for a, b in zip(*lines, strict=True):
            assert (a["input"], a["class"]) == (b["input"], b["class"])
            assert a["probabilities"] == pytest.approx(b["probabilities"], abs=1e-5)
    outcome = tmp_path / "run" / "compressed"
    shutil.copytree(runs / "images", tmp_path / "run")
    outcome.mkdir()
    write_litert(outcome / "model.tflite", runs / "images", None, pixels)  # The run says what the inputs are.
    assert predict("--model=run/compressed/model.tflite", "--input=photos", "--output=1.csv")[0] == 1
    assert predict(f"--run_dir={runs}/images", "--input=photos", "--output=2.csv")[0] == 1
    classes = [[row["class"] for row in get_rows(tmp_path / f"{name}.csv")] for name in "12"]
    assert classes[0] == classes[1]


@pytest.mark.slow
def test_litert_files_that_do_not_fit_are_named(predict, runs, tmp_path):
    write_litert(tmp_path / "bare.tflite", runs / "images", None, np.zeros((1, 8, 8, 1), "float32"))
    np.save(tmp_path / "x.npy", np.full((2, 8, 8, 1), 200.0))
    np.save(tmp_path / "y.npy", np.zeros((2, 3)))
    (tmp_path / "a.png").write_text("")
    (tmp_path / "broken.tflite").write_bytes(b"0000TFL3 and no more")
    assert predict("--model=bare.tflite", "--input=x.npy", "--output=1.csv")[0] == 0
    assert list(get_rows(tmp_path / "1.csv")[0]) == ["input", "outputs_0", "outputs_1"]
    for model, given, message in [
        ("bare", "a.png", "This model takes arrays (.npy, .npz, .jsonl) of pixels of shape (8, 8, 1), float32."),
        (
            "bare",
            "y.npy",
            "pixels in y.npy must hold rows of shape (8, 8, 1), float32. Received: float64, shape (2, 3)",
        ),
        ("broken", "x.npy", "LiteRT cannot load broken.tflite: "),
    ]:
        status, out, err = predict(f"--model={model}.tflite", f"--input={given}", "--output=2.csv")
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert message in err
    from tfaccel.errors import ExportError
    from tfaccel.exporting.load_model import load_keras_model

    with pytest.raises(ExportError, match=r"bare\.tflite is a LiteRT file, which cannot be converted to a Keras model"):
        load_keras_model(tmp_path / "bare.tflite")
    (tmp_path / "bare.bin").write_bytes((tmp_path / "bare.tflite").read_bytes())
    with pytest.raises(ExportError, match=r"bare\.bin is a LiteRT file"):
        load_keras_model(tmp_path / "bare.bin")
