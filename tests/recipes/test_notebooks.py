"""The notebooks for Colab: tidy files, and every cell runs, from top to bottom, on the CPU."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "colab"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="needs the sources")

# After two epochs, far above chance.
MIN_ACCURACY = {"text_classification": 0.3}

RUN = """
import json, sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
nbformat.validate(notebook)
NotebookClient(notebook, timeout=400, kernel_name="python3").execute()
print(json.dumps({cell["id"]: cell["outputs"] for cell in notebook.cells if cell["cell_type"] == "code"}))
"""


def cells_of(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


def make_source(name, cell_id):
    (cell,) = [cell for cell in cells_of(name) if cell["id"] == cell_id]
    return "".join(cell["source"])


def text_of(outputs):
    return "".join(output["text"] for output in outputs if output.get("name") == "stdout")


def test_there_are_notebooks():
    assert {"bring_your_own_model", "image_classification", "text_classification"} <= set(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_files_are_tidy(name):
    cells = cells_of(name)
    identifiers = [cell["id"] for cell in cells]
    assert len(set(identifiers)) == len(identifiers)
    assert all(identifier.replace("-", "").isalpha() for identifier in identifiers), "names, not random numbers"
    assert not [cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count")], (
        "outputs are cleared"
    )
    assert not [cell["id"] for cell in cells for line in cell["source"] if len(line.rstrip("\n")) > 120]
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 12_000


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_first_cells_are_the_same_everywhere(name):
    for cell_id in ("install", "preflight"):
        assert make_source(name, cell_id) == make_source(NOTEBOOKS[0], cell_id)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_runs_and_the_last_shows_a_picture(run_python, tmp_path, name):
    done = run_python(
        RUN, str(FOLDER / f"{name}.ipynb"), cwd=tmp_path, env={"TFACCEL_EPOCHS": "2"}, timeout_seconds=500
    )
    outputs = json.loads(done.stdout.splitlines()[-1])
    assert text_of(outputs["preflight"]) == "CPU runtime: no TPU and no GPU here.\n"
    accuracy = float(text_of(outputs["train"]).split("test accuracy ")[1].split()[0])
    assert accuracy > MIN_ACCURACY.get(name, 0.6)
    assert any("image/png" in output.get("data", {}) for output in outputs["picture"])
    assert list(outputs)[-1] == "picture"
    assert list((tmp_path / "runs").glob("*/model.keras"))


def test_without_tfaccel_and_a_source_the_first_cell_says_what_to_set(run_python, tmp_path):
    code = "import importlib.util, sys; importlib.util.find_spec = lambda name: None; exec(sys.argv[1])"
    done = run_python(code, make_source("image_classification", "install"), check=False)
    assert (done.returncode, done.stderr.strip()) == (
        1,
        "Set SOURCE to tfaccel's repository or to the folder of a clone.",
    )
