"""Recipes that are killed and resumed end as whole runs, to the last bit; two replicas give one device's losses."""

import json
from pathlib import Path

import numpy as np
import pytest
from own_texts import write_own_texts
from PIL import Image

# What a saved model is made of is imported by the recipe when the model is built, or by what uses the model.
PROGRAM = "import tfaccel.models.conditional_gan, tfaccel.models.centre_detector, tfaccel.models.variational\n"
PROGRAM += "import tfaccel.models.text_run\n" + Path(__file__).with_name("resume_runs.py").read_text()
CASES = [
    {"name": "gan", "recipe": "gan", "data": "images.npz", "options": {"latent_size": 4}},
    {"name": "transfer", "recipe": "transfer_learning", "data": "images.npz", "options": {"ema": True}},
    {"name": "autoencoder", "recipe": "autoencoder", "data": "images.npz", "options": {"latent_size": 3}},
    {"name": "detection", "recipe": "object_detection", "data": "boxes", "options": {"image_size": 32}},
    {"name": "convolutions", "recipe": "sequence_forecasting", "data": "rows.csv",
     "options": {"time_column": "time", "window": 8, "horizon": 4}},
    {"name": "gru", "recipe": "sequence_forecasting", "data": "rows.csv",
     "options": {"time_column": "time", "window": 8, "horizon": 4, "model": "gru"}},
    {"name": "classes", "recipe": "tabular_classification", "data": "rows.csv", "options": {"target": "kind"}},
    {"name": "numbers", "recipe": "tabular_regression", "data": "rows.csv", "options": {"target": "x"}},
    {"name": "reader", "recipe": "text_classification", "data": "labels.csv",
     "options": {"num_words": 8, "model": "transformer"}},
    {"name": "characters", "recipe": "text_generation", "data": "long.txt", "options": {"width": 16, "num_layers": 1}},
    {"name": "pairs", "recipe": "translation", "data": "", "options": {"width": 32, "num_blocks": 1, "dropout": 0.1}},
    {"name": "summaries", "recipe": "summarization", "data": "summaries.csv",
     "options": {"width": 32, "num_words": 12, "ema": True}},
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resumed")
    write_own_texts(folder)
    (folder / "long.txt").write_text("over and over again. " * 400)
    generator = np.random.default_rng(0)
    labels = np.arange(48) % 3
    images = (generator.integers(0, 80, (48, 8, 8)) + 80 * labels[:, None, None]).astype(np.uint8)
    np.savez(folder / "images.npz", x_train=images, y_train=labels, x_test=images[:9], y_test=labels[:9])
    rows = [f"{i},{np.sin(i / 9):.3f},{'ab'[i % 2]}" for i in range(160)]
    (folder / "rows.csv").write_text("\n".join(["time,x,kind", *rows]))
    (folder / "boxes").mkdir()
    for i in range(60):
        Image.fromarray(np.full((32, 32), 4 * i, np.uint8)).save(folder / "boxes" / f"{i}.png")
    described = {
        "images": [{"id": i, "file_name": f"{i}.png"} for i in range(60)],
        "annotations": [{"id": i, "image_id": i, "category_id": 0, "bbox": [i % 16, 4, 12, 16]} for i in range(60)],
        "categories": [{"id": 0, "name": "grey"}],
    }
    (folder / "boxes" / "annotations.json").write_text(json.dumps(described))
    return folder


@pytest.fixture
def run(run_python, folder):
    """A function that runs cases, each of a kind, in one child process: its status, and what the cases gave."""

    def run(*cases):
        child = run_python(PROGRAM, folder, json.dumps(cases), check=False, timeout_seconds=500)
        return child.returncode, json.loads(child.stdout.splitlines()[-1]) if child.returncode == 0 else child.stderr

    return run


@pytest.mark.slow
@pytest.mark.parametrize("part", [slice(2), slice(2, 8), slice(8, None)])
def test_resumed_run_equals_whole_run(run, folder, part):
    cases = CASES[part]
    for case in cases:
        assert run({**case, "kind": "killed"})[0] == 7
        assert list((folder / f"{case['name']}-stopped" / "checkpoints").iterdir())
        assert not (folder / f"{case['name']}-stopped" / "model.keras").exists()
    status, ended = run(*[{**case, "kind": kind} for case in cases for kind in ("whole", "resumed")])
    assert status == 0, ended
    for case, whole, resumed in zip(cases, ended[::2], ended[1::2], strict=True):
        if case["name"] == "detection":  # On a busy machine, one run may take its steps for long ones, the other not.
            assert resumed[1]["loss"] == pytest.approx(whole[1]["loss"], rel=0.02)
        else:
            assert resumed == whole, case["name"]


@pytest.mark.slow
def test_two_replicas_give_the_losses_of_one_device(run):
    # Each replica draws its own dropout, so there is none; the detector's batch normalisations take its own statistics.
    # Words are made unknown in the data, whatever the replicas.
    cases = [
        {**case, "name": f"{case['name']} without dropout", "options": {**case["options"], "dropout": 0.0}}
        for case in CASES
        if case["name"] != "detection"
    ]
    one, two = (run(*[{**case, "kind": kind} for case in cases]) for kind in ("whole", "mirrored"))
    assert (one[0], two[0]) == (0, 0), (one, two)
    for case, (_, history, _), (_, other, _) in zip(cases, one[1], two[1], strict=True):
        losses = [name for name in history if name.endswith("loss")]
        for name in losses:
            assert other[name] == pytest.approx(history[name], rel=1e-5), (case["name"], name)
