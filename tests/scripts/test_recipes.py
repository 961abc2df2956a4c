"""`tfaccel recipes`: the list of recipes, read without importing them."""

import json
import sys

import pytest

from tfaccel.planning import load_workload
from tfaccel.planning.load_workload import list_recipes
from tfaccel.scripts import recipes as recipes_command


@pytest.fixture
def recipes(capsys):
    """A function that runs the command with these flags: status, standard output, standard error."""

    def run(*arguments):
        status = recipes_command.run(["tfaccel recipes", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def two_recipes(tmp_path, monkeypatch):
    package = tmp_path / "recipes_of_this_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sorting.py").write_text('"""Learns to sort.\n\nMore."""\nraise RuntimeError("imported")')
    (package / "images.py").write_text('"""Classifies images."""\nraise RuntimeError("imported")')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(load_workload, "RECIPES_PACKAGE", "recipes_of_this_test")
    yield
    sys.modules.pop("recipes_of_this_test", None)


def test_text(recipes, two_recipes):
    lines = "images   Classifies images.\nsorting  Learns to sort.\n"
    status, out, err = recipes()
    found = "".join(f"{line.rstrip()}\n" for line in out.splitlines())
    assert (status, found, err) == (0, f"{lines}\nTrain one: tfaccel train --recipe=NAME --run_dir=DIR\n", "")


def test_json(recipes, two_recipes):
    status, out, _ = recipes("--json")
    assert status == 0
    assert json.loads(out) == {
        "recipes": [
            {"name": "images", "summary": "Classifies images."},
            {"name": "sorting", "summary": "Learns to sort."},
        ]
    }


def test_none_installed(recipes, tmp_path, monkeypatch):
    monkeypatch.setattr(load_workload, "RECIPES_PACKAGE", "no_such_package_of_recipes")
    assert recipes() == (0, "No recipes are installed.\n", "")


def test_installed_recipes(recipes):
    _, out, _ = recipes("--json")
    assert [recipe["name"] for recipe in json.loads(out)["recipes"]] == [recipe.name for recipe in list_recipes()]


def test_bad_input(recipes):
    assert recipes("here") == (
        2,
        "",
        "tfaccel recipes: unexpected argument 'here'. Flags are written --name=value.\n",
    )
