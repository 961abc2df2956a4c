"""Where workload and space come from, what worker processes can get, and what a recipe offers to search."""

import dataclasses
import importlib
import pickle
import sys
import threading

import numpy as np
import pytest

from tfaccel import Workload
from tfaccel.errors import SearchError, WorkloadError
from tfaccel.planning.load_workload import list_recipes
from tfaccel.planning.reference import Reference
from tfaccel.tuning.source import DEPTHS, PARTS, SIZES, SearchSource, recipe_space


def made_up(*, width: int = 8):
    return Workload(f"width {width}", object, dict, lambda *args, **kwargs: None, global_batch_size=4)


def not_a_workload():
    return 3


class Locked:
    """A space that cannot be pickled."""

    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, hp=None):
        with self.lock:
            return {}


def locked():
    return dataclasses.replace(made_up(), build_model=Locked().__call__)


class Defaults:
    """Takes the place of Keras Tuner's hyperparameters, and answers with the defaults."""

    def __init__(self):
        self.asked = {}

    def Choice(self, name, values, *, default):
        assert default in values
        assert len(set(values)) > 1
        self.asked[name] = values
        return default

    def Float(self, name, low, high, *, default, sampling="linear"):
        assert low <= default <= high
        self.asked[name] = (low, high)
        return default


def test_functions_travel_by_reference():
    source = SearchSource.of(made_up, "some_module:build")
    again = pickle.loads(pickle.dumps(source))
    assert again == source
    assert again.make_workload({"width": 5}).name == "width 5"
    assert again.space == Reference(kind="import", text="some_module:build", name="some_module:build")
    assert SearchSource.of("gan", None).workload.kind == "recipe"
    assert SearchSource.of("gan", None).space.load() is None


@pytest.mark.parametrize(
    ("workload", "space", "message"),
    [
        (made_up(), None, r"The Workload 'width 8' has no arguments to search. Pass a space, build\(hp\)"),
        (made_up, "build", "A space is written package.module:name. Received: 'build'"),
        (
            made_up,
            Locked(),
            "cannot be sent to worker processes: cannot pickle.*Define it at the top level of",
        ),
        (locked(), made_up, "The workload width 8 cannot be sent.*Pass a function that creates it, defined at the top"),
        (made_up, 7, "A space must be a function or its import path. Received: 7"),
    ],
)
def test_what_cannot_travel_is_refused(workload, space, message):
    with pytest.raises(SearchError, match=message):
        SearchSource.of(workload, space)


def test_workloads_and_functions_without_a_name_travel_by_value():
    width = 12
    work = Workload.of(object, np.arange(8.0).reshape(4, 2), np.zeros(4), name="mine", loss="mse")
    source = pickle.loads(pickle.dumps(SearchSource.of(work, lambda hp: {"width": width})))
    made = source.make_workload({"global_batch_size": 2})
    assert (made.name, made.num_train_examples, made.global_batch_size) == ("mine", 4, 2)
    assert source.space.load()(None) == {"width": 12}
    with pytest.raises(WorkloadError, match=r"'mine' is a Workload, which takes no options\. Received: width"):
        source.make_workload({"width": 2})


def takes_epochs(*, epochs: int = 3):
    return made_up()


def test_the_batch_size_of_a_trial_becomes_the_workload_s():
    assert SearchSource.of(made_up, None).make_workload({"global_batch_size": 16}).global_batch_size == 16
    with pytest.raises(WorkloadError, match=r"takes_epochs has a parameter `epochs`, which the run decides\. Leave it"):
        SearchSource.of(takes_epochs, None).make_workload({})


def test_what_cannot_be_loaded_is_said():
    with pytest.raises(WorkloadError, match=r"must return a tfaccel.Workload, or \(model, x, y\).*Received: int"):
        SearchSource.of(not_a_workload, None).make_workload({})
    with pytest.raises(SearchError, match=r"There is no module 'no_such_module' \(wanted for no_such"):
        Reference(kind="import", text="no_such_module:build").load(SearchError)
    with pytest.raises(SearchError, match=r"There is no module 'search_source'.*Write it without \.py\."):
        Reference(kind="import", text="search_source.py:build").load(SearchError)
    with pytest.raises(SearchError, match=r"has no 'dump_s'. Did you mean 'dumps'"):
        Reference(kind="import", text="json:dump_s").load(SearchError)


@pytest.mark.parametrize("name", [recipe.name for recipe in list_recipes()])
def test_every_recipe_has_a_space_of_its_own(name):
    function = importlib.import_module(f"tfaccel.recipes.{name}").workload
    hp = Defaults()
    workload = function()
    arguments = recipe_space(function, workload)(hp)
    assert {"optimizer", "learning_rate", "schedule", "weight_decay", "global_batch_size"} <= set(arguments)
    assert any(name in arguments for name in ("model", *SIZES, *DEPTHS))  # architecture
    assert any(name in arguments for name in PARTS)
    assert arguments["optimizer"] == workload.options["optimizer"]
    assert arguments["global_batch_size"] == workload.global_batch_size
    del arguments["global_batch_size"]  # the plan's
    again = function(**arguments)
    assert again.name == workload.name
    assert again.options["learning_rate"] == arguments["learning_rate"]


def test_what_is_fixed_is_not_searched():
    from tfaccel.recipes import text_classification

    function = text_classification.workload
    arguments = recipe_space(function, function(), fixed=["model", "optimizer", "dropout"])(Defaults())
    assert not {"model", "optimizer", "dropout"} & set(arguments)
    assert {"label_smoothing", "token_dropout"} <= set(arguments)
    searched = recipe_space(made_up, made_up())
    assert searched(Defaults()) == {"width": 8, "global_batch_size": 4}
    assert recipe_space(made_up, made_up(), fixed=["global_batch_size"])(Defaults()) == {"width": 8}


def test_a_function_without_parameters_has_no_space():
    with pytest.raises(SearchError, match=r"has no parameter that the default space searches. Pass a space"):
        recipe_space(not_a_workload, made_up())


def test_a_worker_imports_from_the_folders_of_this_process(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    source = SearchSource.of(made_up, "some_module:build")
    monkeypatch.undo()
    monkeypatch.setattr(sys, "path", list(sys.path))
    source.origin.prepare()
    assert str(tmp_path) in sys.path


def test_an_imported_workload_has_no_arguments_to_search():
    source = SearchSource.of("test_search_source:WORK", None)
    with pytest.raises(SearchError, match=r"The Workload 'width 8' has no arguments to search. Pass a space"):
        source.workload_function()


WORK = made_up()
