"""A recipe is a page to copy: in an empty folder, under another name and with another model, it trains."""

import json
from pathlib import Path

import pytest

import tfaccel.recipes

# Recipe -> what its copy is called, and what is changed in its model: from, to.
CHANGES = {
    "image_classification": ("photographs", "layers.GlobalAveragePooling2D()", "layers.GlobalMaxPooling2D()"),
    "tabular_classification": ("customers", 'layers.Activation("silu")', 'layers.Activation("tanh")'),
    "text_classification": ("letters", "layers.Embedding(num_tokens, 64)", "layers.Embedding(num_tokens, 8)"),
}
SHOWN = {"photographs": "predictions.png", "customers": "comparison.json", "letters": "vocabulary.json"}
PROGRAM = """
import json, os, sys
from tfaccel.scripts.main import main

folder, names = sys.argv[1], sys.argv[2:]
os.chdir(folder)
for name in names:
    plan = ["--strategy=none", "--devices=CPU:0", "--logical_cpus=2", "--dtype_policy=float32"]
    status = main(["tfaccel", "train", f"--workload={name}:workload", f"--run_dir=runs/{name}", "--epochs=1",
                   "--label_smoothing=0.2", "--optimizer=sgd", "--quiet", *plan])
    assert status == 0, (name, status)

import keras
from tfaccel.planning.load_workload import workload_of_run

found = {}
for name in names:
    model = keras.models.load_model(f"runs/{name}/model.keras", compile=False)
    layers = [layer for outer in model.layers for layer in (outer, *getattr(outer, "layers", []))]
    found[name] = [json.dumps(layer.get_config()) for layer in layers]
    again = workload_of_run(f"runs/{name}", workload=f"{name}:workload")
    assert (again.name, again.epochs, again.options["label_smoothing"]) == (name, 1, 0.2)
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_copies_with_another_model_train(run_python, tmp_path):
    for recipe, (name, old, new) in CHANGES.items():
        page = Path(tfaccel.recipes.__path__[0], f"{recipe}.py").read_text()
        assert page.count(old) == 1
        (tmp_path / f"{name}.py").write_text(page.replace(old, new))
    names = [name for name, _, _ in CHANGES.values()]
    layers = json.loads(run_python(PROGRAM, tmp_path, *names, timeout_seconds=800).stdout.splitlines()[-1])
    assert any("global_max_pooling2d" in one for one in layers["photographs"])
    assert any('"activation": "tanh"' in one for one in layers["customers"])
    assert any('"output_dim": 8' in one for one in layers["letters"])
    for name in names:
        result = json.loads((tmp_path / "runs" / name / "result.json").read_text())
        config = json.loads((tmp_path / "runs" / name / "config.json").read_text())
        assert (result["recipe"], config["options"]["optimizer"]) == (name, "sgd")
        assert result["baselines"]["metric"] == "accuracy"  # The copy shows its result, too.
        assert (tmp_path / "runs" / name / SHOWN[name]).exists()
