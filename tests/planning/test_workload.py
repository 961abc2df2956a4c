"""The noun Workload, its import path, and the list of recipes."""

import dataclasses
import sys

import pytest

from tfaccel.errors import DataError, WorkloadError
from tfaccel.known_names import did_you_mean
from tfaccel.planning.load_workload import list_recipes, load_recipe, load_workload, read_summary
from tfaccel.planning.workload import Workload


def made_up(**changes):
    fields = {"name": "made_up", "build_model": object, "compile_args": dict, "train_data": list}
    return Workload(**{**fields, "global_batch_size": 8, **changes})


def test_workload_is_a_value():
    assert made_up() == made_up()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made_up().name = "other"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "A workload's name must be a text. Received: name=''"),
        ({"build_model": None}, "A workload's build_model must be a function. Received: build_model=None"),
        ({"train_data": [1]}, r"A workload's train_data must be a function. Received: train_data=\[1\]"),
        ({"augment": 3}, "A workload's augment must be a function. Received: augment=3"),
        ({"augment": list}, r"A workload with `augment` has a train_data that takes `augmented`, .*does not take it"),
        ({"validation_data": 3}, "A workload's validation_data must be a function"),
        ({"global_batch_size": None}, "global_batch_size must be a whole number of at least 1. Received"),
        ({"global_batch_size": 0}, "Received: global_batch_size=0"),
        ({"min_replica_batch_size": 1.5}, "min_replica_batch_size must be a whole number of at least 1 or None"),
        ({"num_train_examples": 0}, "Received: num_train_examples=0"),
        ({"options": {"layers": object}}, r"options must be names with JSON values. Received: {'layers': .*not JSON"),
        ({"bfloat16_on_cpu": 1}, "bfloat16_on_cpu must be True or False. Received: 1."),
    ],
)
def test_workload_refused(changes, message):
    made_up()
    with pytest.raises(WorkloadError, match=message):
        made_up(**changes)


MODULE = """
from tfaccel.errors import DataError
from tfaccel.planning.workload import Workload

def workload(global_batch_size=8, data_dir=None):
    if data_dir == "broken":
        raise DataError("no such folder")
    return Workload("mine", object, dict, list, global_batch_size=global_batch_size)

def other_thing():
    return 3

number = 3
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder of modules to import from, forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").write_text("")
    (tmp_path / "my_package" / "digits.py").write_text(MODULE)
    (tmp_path / "my_package" / "broken.py").write_text("1 / 0")
    (tmp_path / "my_package" / "needy.py").write_text("import a_module_that_is_not_there")
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("my_package"):
            del sys.modules[name]


def test_load_workload(modules):
    assert load_workload("my_package.digits:workload").global_batch_size == 8
    assert load_workload("my_package.digits:workload", global_batch_size=16).global_batch_size == 16


OWN = """
import numpy as np
from tfaccel import Workload

x, y = np.zeros((6, 2)), np.zeros(6)
value = Workload.of(object, x, y, loss="mse", name="value")

def parts(scale=1.0):
    return object, x * scale, y
"""


def test_a_workload_may_be_a_value_or_a_model_with_data(modules):
    (modules / "my_package" / "own.py").write_text(OWN)
    assert load_workload("my_package.own:value").name == "value"
    made = load_workload("my_package.own:parts", scale=2.0)
    assert (made.name, made.num_train_examples, made.global_batch_size) == ("own", 6, 32)
    with pytest.raises(WorkloadError, match=r"my_package.own:value is a Workload, which takes no options. .*: scale"):
        load_workload("my_package.own:value", scale=2.0)


@pytest.mark.parametrize(
    ("import_path", "message"),
    [
        ("my_package.digits", "A workload is written package.module:function. Received: 'my_package.digits'"),
        ("my_package.digits:", "is written package.module:function"),
        (":workload", "is written package.module:function"),
        ("my package:workload", "is written package.module:function"),
        ("my_package.digits:a:b", "is written package.module:function"),
        ("no_package.digits:workload", "There is no module 'no_package'"),
        (
            "my_package.digit:workload",
            r"There is no module 'my_package.digit' \(wanted for my_package.digit:workload\)",
        ),
        (
            "my_package.needy:workload",
            "Importing my_package.needy failed: No module named 'a_module_that_is_not_there'",
        ),
        ("my_package.broken:workload", "Importing my_package.broken failed: ZeroDivisionError"),
        ("my_package.digits:wrkload", "Module 'my_package.digits' has no 'wrkload'. Did you mean 'workload'"),
        ("my_package.digits:number", "must be a tfaccel.Workload or a function that returns one. Received: int"),
        ("my_package.digits:other_thing", r"must return a tfaccel.Workload, or \(model, x, y\), or .*Received: int"),
    ],
)
def test_load_workload_refused(modules, import_path, message):
    with pytest.raises(WorkloadError, match=message):
        load_workload(import_path)


def test_arguments_refused(modules):
    with pytest.raises(WorkloadError, match=r"got an unexpected keyword argument 'datadir'. Did you mean 'data_dir'\?"):
        load_workload("my_package.digits:workload", datadir="x")


def test_errors_of_the_function_pass_through(modules):
    with pytest.raises(DataError, match="no such folder"):
        load_workload("my_package.digits:workload", data_dir="broken")


@pytest.fixture
def recipes(modules, monkeypatch):
    """`my_package` in the place of the installed recipes."""
    (modules / "my_package" / "image_classification.py").write_text(f'"""Classifies images.\n\nMore."""\n{MODULE}')
    (modules / "my_package" / "broken.py").write_text('"""Would fail when imported."""\n1 / 0')
    (modules / "my_package" / "_private.py").write_text("")
    monkeypatch.setattr("tfaccel.planning.load_workload.RECIPES_PACKAGE", "my_package")


def test_list_recipes_reads_without_importing(recipes):
    assert [(recipe.name, recipe.summary) for recipe in list_recipes()] == [
        ("broken", "Would fail when imported."),
        ("digits", ""),
        ("image_classification", "Classifies images."),
        ("needy", ""),
    ]
    assert "my_package.image_classification" not in sys.modules


def test_load_recipe(recipes):
    assert load_recipe("image_classification", global_batch_size=4).global_batch_size == 4
    with pytest.raises(WorkloadError, match=r"no recipe 'image_clasification'\. Did you mean 'image_classification'"):
        load_recipe("image_clasification")
    with pytest.raises(WorkloadError, match=r"no recipe 'x'\. Recipes: broken, digits, image_classification, needy\."):
        load_recipe("x")


def test_installed_recipes_have_a_summary():
    assert all(recipe.summary for recipe in list_recipes())


def test_summary_of(tmp_path):
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "b.py").write_text('"""\n  First line.\n\nMore.\n"""')
    assert [read_summary(tmp_path / name) for name in ("a.py", "b.py")] == ["", "First line."]


def test_did_you_mean():
    assert did_you_mean("miror", ["mirrored", "none"]) == " Did you mean 'mirrored'?"
    assert did_you_mean("xyz", ["mirrored", "none"]) == ""
