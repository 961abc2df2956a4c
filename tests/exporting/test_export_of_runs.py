"""What recipes' runs leave is enough to export them and to predict files with them."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tfaccel.data.raw_input import ImageInput, load_raw_input
from tfaccel.errors import RunDirError
from tfaccel.exporting.load_model import load_run, place_of_run, raw_input_of_file
from tfaccel.training.run.run_dir import RunDir

RUN = "import sys; from tfaccel.scripts.main import main; sys.exit(main(['tfaccel', *sys.argv[1:]]))"


def tfaccel(folder, *arguments):
    """Runs the command; returns what it wrote on standard output."""
    ended = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_run_directory_keeps_what_raw_inputs_are(tmp_path):
    run, raw_input = RunDir(tmp_path, {}), ImageInput(image_size=8, num_channels=1, class_names=("a", "b"))
    run.write_raw_input(None)
    assert list(tmp_path.iterdir()) == []
    run.write_raw_input(raw_input)
    assert load_raw_input(tmp_path / "raw_input.json") == raw_input
    other = RunDir(tmp_path / "worker", {}, writes=False)
    other.write_raw_input(raw_input)
    assert not (tmp_path / "worker").exists()


@pytest.mark.parametrize("opened", [place_of_run, load_run, lambda folder: raw_input_of_file(folder / "model.keras")])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("raw_input.json", None, r"has lost its raw_input\.json, which the run has written\. Put it back"),
        ("example_inputs.npz", None, r"has lost its example_inputs\.npz"),
        ("raw_input.json", b"{}", r"raw_input\.json is not the file that this run has written: it was changed"),
        ("model.keras", b"another's", r"model\.keras is not the file that this run has written"),
        ("result.json", b'{"files": 3}', r"result\.json cannot be read"),
    ],
)
def test_files_of_a_run_that_are_gone_or_replaced_are_refused(tmp_path, opened, name, content, message):
    run = RunDir(tmp_path, {"recipe": "mine"})
    run.start({})
    run.model_file.write_bytes(b"a model")
    (tmp_path / "example_inputs.npz").write_bytes(b"rows")
    run.write_raw_input(ImageInput(image_size=8, num_channels=1, class_names=("a", "b")))
    run.write_result({"final": {}})
    run.close()
    assert place_of_run(tmp_path).raw_input == raw_input_of_file(tmp_path / "model.keras") is not None
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RunDirError, match=message):
        opened(tmp_path)


@pytest.mark.slow
def test_run_on_images_is_exported_in_every_format_and_predicts_files(tmp_path):
    tfaccel(tmp_path, "train", "--recipe=image_classification", "--run_dir=run", "--epochs=4", "--quiet")
    formats = "--formats=keras,saved_model,litert,onnx"
    result = json.loads(tfaccel(tmp_path, "export", "--run_dir=run", formats, "--out=out", "--json", "--quiet"))
    assert {file["format"]: file["max_difference"] < 1e-4 for file in result["files"]} == dict.fromkeys(
        ("keras", "saved_model", "litert", "onnx"), True
    )
    from sklearn.datasets import load_digits

    digits = load_digits()
    (tmp_path / "photos").mkdir()
    for number in range(40):
        pixels = np.round(digits.images[number] * (255 / 16)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number:02d}.png")
    for model in ("--run_dir=run", "--model=out"):
        tfaccel(tmp_path, "predict", model, "--input=photos", "--output=found.csv")
        with (tmp_path / "found.csv").open(newline="") as file:
            found = [int(row["class"]) for row in csv.DictReader(file)]
        assert np.mean(np.array(found) == digits.target[:40]) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["text_classification", "tabular_classification", "gan", "sequence_forecasting"])
def test_run_of_a_recipe_is_exported_in_every_format(tmp_path, recipe):
    tfaccel(tmp_path, "train", f"--recipe={recipe}", "--run_dir=run", "--epochs=1", "--quiet")
    formats = "--formats=keras,saved_model,litert,onnx"
    result = json.loads(tfaccel(tmp_path, "export", "--run_dir=run", formats, "--out=out", "--json", "--quiet"))
    assert len(result["files"]) == 4
    has_raw = recipe in ("text_classification", "tabular_classification")
    signatures = ["serving_default", "serving_raw"] if has_raw else ["serving_default"]
    assert result["files"][1]["signatures"] == signatures
