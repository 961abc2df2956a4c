"""Scripts that train models of the table under `tfaccel check`: equal to one device, or what is wrong is named."""

import json
from pathlib import Path

import pytest

from tfaccel.scripts import check

HERE = Path(__file__).parent
SCRIPT = """
import sys

sys.path.insert(0, {here!r})
import comparison

model = comparison.all_models([{name!r}])[{name!r}]
model.build().fit(**model.data(), epochs=2)
"""
EQUAL = (
    "real_nvp",
    "super_resolution",
    "several_outputs",
    "mixup",
    "neural_decision_forest",
    "masked_language_model",
    "siamese_triplets",
    "captcha_ocr",
    "listwise_ranking",
    "masked_language_modeling",
)


def checked(name, folder, capsys):
    """The exit status and the result of checking a script that trains a model of the table."""
    path = folder / f"{name}.py"
    path.write_text(SCRIPT.format(here=str(HERE), name=name))
    status = check.run(["tfaccel check", str(path), "--steps=3", "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", EQUAL)
def test_equal(name, tmp_path, capsys):
    status, found = checked(name, tmp_path, capsys)
    *_, ours = found["rows"]
    assert (status, ours["failure"], ours["first_different"]) == (0, "", "")
    assert ours["loss_difference"] < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_refusal_is_in_the_table(tmp_path, capsys):
    status, found = checked("switch_transformer", tmp_path, capsys)
    assert status == 1
    assert "CoupledRowsError: A loss added by layer 'switch_router' (SwitchRouter)" in found["rows"][-1]["failure"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_random_numbers_that_cannot_be_compared_are_named(tmp_path, capsys):
    status, found = checked("vae", tmp_path, capsys)
    _, keras, ours = found["rows"]
    assert (status, ours["failure"]) == (1, "")
    assert found["causes"][-1] == "random numbers drawn outside of layers, of which each replica has its own"
    assert keras["failure"].startswith(("ValueError", "RuntimeError"))
