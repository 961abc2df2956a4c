"""The guide's Keras script becomes a run by a few changed lines; killed and resumed it ends as one that was not."""

import difflib
import json

import numpy as np
import pytest
from pages import blocks

from tfaccel import load_run

PAGE = "docs/guides/your_model.md"
NUM_EPOCHS = 8

# Runs scripts, the first of which may die after so many epochs; prints the history and the weights of each.
CHILD = """
import json, os, runpy, sys

from tfaccel.training.run.run_dir import RunDir

die_after, *scripts = sys.argv[1:]
add_row = RunDir.add_row

def dying(self, row):
    add_row(self, row)
    if len(self.rows) == int(die_after):
        os._exit(7)

RunDir.add_row = dying
found = []
for script in scripts:
    names = runpy.run_path(script, run_name="__main__")
    found.append([names["history"].history, [weight.tolist() for weight in names["model"].get_weights()]])
print(json.dumps(found))
"""


def script(name):
    return next(block.code for block in blocks(PAGE, "python") if block.title == name)


def changed_lines(before, after):
    """Lines that were added or replaced, and lines that were taken away without another in their place."""
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    return sum(max(b - a, d - c) for kind, a, b, c, d in matcher.get_opcodes() if kind != "equal")


def test_few_lines_change():
    plain, own = script("plain.py"), script("digits.py")
    assert 15 <= len(plain.splitlines()) <= 25
    assert changed_lines(plain, own) <= 5
    removed = [line for line in difflib.ndiff(plain.splitlines(), own.splitlines()) if line.startswith("- ")]
    assert len(removed) == 1  # model.fit


@pytest.fixture(scope="module")
def outcomes(run_python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    plain, own = script("plain.py"), script("digits.py")
    (folder / "digits.py").write_text(own)
    (folder / "whole.py").write_text(own.replace("runs/digits_script", "runs/whole"))
    # What both have in common then: the seed, the order of the rows, and one device in float32.
    seeded = "import keras\nkeras.utils.set_random_seed(0)\n"
    in_order = ("**options", "**options, shuffle=False")
    assert all(in_order[0] in text for text in (plain, own))
    (folder / "plain_in_order.py").write_text(seeded + plain.replace(*in_order))
    plan = 'plan=tfaccel.Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)'
    text = own.replace(in_order[0], f"{in_order[1]}, {plan}").replace("runs/digits_script", "runs/in_order")
    (folder / "in_order.py").write_text(seeded + text)
    for name in ("digits", "whole"):  # without the same initial weights no two runs are alike
        (folder / f"{name}.py").write_text(seeded + (folder / f"{name}.py").read_text())
    killed = run_python(CHILD, 3, "digits.py", cwd=folder, check=False)
    rows = (folder / "runs/digits_script/metrics.jsonl").read_text().splitlines()
    names = ("digits", "whole", "plain_in_order", "in_order")
    child = run_python(CHILD, 99, *(f"{name}.py" for name in names), cwd=folder)
    found = dict(zip(names, json.loads(child.stdout.splitlines()[-1]), strict=True))
    return {"killed": killed.returncode, "rows": len(rows), "folder": folder, **found}


@pytest.mark.slow
def test_killed_script_resumes_to_the_same_weights(outcomes):
    assert outcomes["killed"] == 7
    assert outcomes["rows"] == 3
    history, weights = outcomes["digits"]
    assert len(history["val_accuracy"]) == NUM_EPOCHS
    assert history == outcomes["whole"][0]
    assert weights == outcomes["whole"][1]
    assert history["val_accuracy"][-1] > 0.8


@pytest.mark.slow
def test_losses_are_those_of_keras_where_the_batches_are(outcomes):
    plain, own = outcomes["plain_in_order"], outcomes["in_order"]
    assert sorted(own[0]) == sorted(plain[0])
    for name, values in plain[0].items():
        assert own[0][name] == pytest.approx(values, rel=1e-5), name
    for ours, theirs in zip(own[1], plain[1], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.slow
def test_the_run_is_planned_and_reported(outcomes):
    run = outcomes["folder"] / "runs/digits_script"
    assert json.loads((run / "plan.json").read_text())["reasons"]
    result = json.loads((run / "result.json").read_text())
    assert result["recipe"] == "digits"
    loaded = load_run(run)
    assert loaded.config["epochs"] == NUM_EPOCHS
    assert loaded.result.history == outcomes["digits"][0]
    assert {"config.json", "model.keras", "metrics.jsonl", "checkpoints"} <= {path.name for path in run.iterdir()}
