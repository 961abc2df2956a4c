"""The decorator `recipe`: options, their validation, what a run records, and what it shows."""

import inspect
import json
import os
import sys
from typing import Literal

import pytest
from absl import flags

import tfaccel
from tfaccel.errors import RunDirError, WorkloadError
from tfaccel.planning.load_workload import workload_of_run
from tfaccel.scripts import train  # noqa: F401  It defines the flags that are the same for all workloads.
from tfaccel.scripts.workload_flags import define_workload_flags
from tfaccel.scripts.workload_parameters import WorkloadParameters

MODULE = '''
"""A recipe of a user's own: which of two bits is set?"""

import os
from pathlib import Path
from typing import Literal

import numpy as np

import tfaccel
from tfaccel.data import Batches
from tfaccel.reporting import BaselineScores


@tfaccel.recipe(adamw_learning_rate=lambda unit: {"small": 1e-3, "large": 1e-2}[unit], global_clipnorm=1.0,
                not_recorded=("cache",))
def workload(
    *,
    unit: Literal["small", "large"] = "small",
    width: tfaccel.options.Count = 8,
    depth: tfaccel.options.Count | None = None,
    dropout: tfaccel.options.Fraction = 0.5,
    scale: float = 2.0,
    shift: int = 0,
    title: str = "bits",
    folded: bool = False,
    cache: str = "auto",
    data_dir: str | os.PathLike[str] | None = None,
    training: tfaccel.options.TrainingOptions,
) -> tfaccel.Workload:
    """What this recipe trains.

    Args:
        unit: the size of the unit.
        width: of the hidden layer.
    """
    bits = np.eye(2, dtype="float32")[np.arange(32) % 2]

    def batches():
        from tfaccel.data.in_memory import TextBatches

        return TextBatches(train=(bits, bits), test=(bits[:8], bits[:8]))

    def build_model():
        import keras

        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(width), keras.layers.Dense(2)])

    return tfaccel.Workload(
        name=__name__,
        build_model=build_model,
        compile_args=lambda num_steps: {"optimizer": training.make_optimizer(num_steps=num_steps), "loss": "mse"},
        data=Batches(bits, batches, num_train_examples=32),
        epochs=2,
        global_batch_size=8,
    )


@workload.show_result
def show_result(work, result):
    Path(result.run_dir, "seen.txt").write_text(f"{len(work.data.source)} {work.options['width']}")
    return BaselineScores(metric="bits", score=1.0, trivial={"none": 0.0}, num_examples=32)


run = workload.run
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_recipe.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_recipe", raising=False)
    import own_recipe

    return own_recipe


def test_public_names_of_the_decorator():
    from tfaccel.training.recipe import Recipe, recipe

    assert tfaccel.recipe is recipe
    assert isinstance(recipe()(lambda: None), Recipe)


def test_a_workload_has_what_its_data_has(own):
    work = own.workload()
    assert (work.name, work.num_train_examples, work.epochs, work.global_batch_size) == ("own_recipe", 32, 2, 8)
    assert work.train_data.__name__ == "train_data"
    assert work.validation_data == work.data.validation_data
    assert work.callbacks() == []
    with pytest.raises(WorkloadError, match=r"train_data must be a function\. Received: train_data=None"):
        tfaccel.Workload("no data", object, dict, global_batch_size=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, r"`width` must be a whole number of at least 1\. Received: width=0\."),
        ({"width": True}, r"`width` must be a whole number of at least 1\. Received: width=True\."),
        ({"width": None}, r"`width` must be a whole number of at least 1\. Received: width=None\."),
        ({"depth": 1.5}, r"`depth` must be a whole number of at least 1\. Received: depth=1\.5\."),
        ({"dropout": 1}, r"`dropout` must be a number from 0 to below 1\. Received: dropout=1\."),
        ({"scale": "2"}, r"`scale` must be a number\. Received: scale='2'\."),
        ({"shift": 0.5}, r"`shift` must be a whole number\. Received: shift=0\.5\."),
        ({"title": 3}, r"`title` must be a text\. Received: title=3\."),
        ({"folded": 1}, r"`folded` must be true or false\. Received: folded=1\."),
        ({"unit": "smal"}, r"`unit` must be one of small, large\. Received: unit='smal'\."),
        ({"optimiser": "adam"}, r"There is no option 'optimiser'\. Did you mean 'optimizer'\?"),
        ({"optimizer": "adamm"}, r"Keras has no optimizer 'adamm'\. Did you mean 'adam"),
        ({"warm_up": 2}, r"`warm_up` must be a number from 0 to below 1"),
    ],
)
def test_options_that_cannot_be_are_refused(own, options, message):
    with pytest.raises(WorkloadError, match=message):
        own.workload(**options)


def test_options_that_can_be_are_taken(own):
    options = {"depth": None, "dropout": 0, "scale": 2, "shift": -1, "title": "", "folded": True, "unit": "large"}
    assert options.items() <= own.workload(**options).options.items()


def test_a_recipe_without_training_options_refuses_them():
    @tfaccel.recipe()
    def workload(*, width: tfaccel.options.Count, kind: Literal["a"] = "a") -> tfaccel.Workload:
        return tfaccel.Workload("bare", object, dict, print, global_batch_size=width)

    assert workload(width=3).options == {"width": 3, "kind": "a"}
    with pytest.raises(WorkloadError, match=r"There is no option 'optimizer'\. Options: width, kind\."):
        workload(width=3, optimizer="adam")
    with pytest.raises(WorkloadError, match=r"`width` has no default\. Give width=VALUE\."):
        workload()


def test_training_options_have_the_recipe_s_defaults(own):
    assert own.workload().options["learning_rate"] == 1e-3
    assert own.workload(unit="large").options["learning_rate"] == 1e-2
    assert own.workload(unit="large", learning_rate=0.5).options["learning_rate"] == 0.5
    assert own.workload(optimizer="SGD").options["learning_rate"] is None
    assert own.workload().options["global_clipnorm"] == 1.0
    clipped = own.workload(clipnorm=0.5).options
    assert (clipped["clipnorm"], clipped["global_clipnorm"]) == (0.5, None)
    assert [type(one).__name__ for one in own.workload(early_stopping=2).callbacks()] == ["EarlyStopping"]


def test_options_are_recorded_exactly(own, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = own.workload(data_dir="here/../data.csv", width=3, cache="disk").options
    assert options["data_dir"] == str(tmp_path / "data.csv")
    assert options["width"] == 3
    assert "cache" not in options
    assert options.keys() == own.workload.recorded_names
    assert own.workload(data_dir="tfds:mnist").options["data_dir"] == "tfds:mnist"
    assert own.workload(**options).options == options
    json.dumps(options)


def test_each_option_is_a_flag_with_the_help_of_the_docstring(own):
    arguments = ["train", "--workload=own_recipe:workload"]

    def parsed(*given):
        values = flags.FlagValues()
        define_workload_flags(values)
        parameters = WorkloadParameters(arguments, values)
        values([*arguments, *given])
        return values, parameters

    values, parameters = parsed("--width=3", "--dropout=0.25", "--folded", "--unit=large", "--depth=2")
    assert values["width"].help == "of the hidden layer"
    assert values["unit"].help == "the size of the unit (small, large)"
    assert parameters.chosen() == {"width": 3, "dropout": 0.25, "folded": True, "unit": "large", "depth": 2}
    for wrong, kind in (("width=x", "a whole number of at least 1"), ("unit=tiny", "one of small, large")):
        with pytest.raises(WorkloadError, match=f"must be {kind}, or auto"):
            parsed(f"--{wrong}")[1].chosen()


def test_the_signature_is_that_of_the_options(own):
    *names, last = inspect.signature(own.workload).parameters.values()
    assert [one.name for one in names][:2] == ["unit", "width"]
    assert (last.name, last.kind) == ("training_options", inspect.Parameter.VAR_KEYWORD)
    assert own.workload.__doc__.startswith("What this recipe trains.")


RUN = """
import json, sys
import own_recipe
from tfaccel.errors import RunDirError

options = {"run_dir": "run", "width": 3, "resume": "auto", "verbose": 0}
result = own_recipe.run(**options)
assert open("run/seen.txt").read() == "32 3"
assert "model.keras" in json.load(open("run/result.json"))["files"]
again = own_recipe.run(**options)
assert again.final == result.final
try:
    own_recipe.run(**{**options, "width": 4})
except RunDirError as error:
    print(error)
else:
    raise SystemExit("a run with another option was resumed")
"""


def test_a_run_shows_its_result_and_is_not_resumed_with_other_options(own, run_python, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "options.width" in run_python(RUN).stdout
    assert json.loads((tmp_path / "run/result.json").read_text())["baselines"]["metric"] == "bits"
    work = workload_of_run("run", workload="own_recipe:workload")
    assert (work.options["width"], work.epochs, work.global_batch_size) == (3, 2, 8)
    with pytest.raises(RunDirError, match="There is no run directory"):
        workload_of_run(os.path.join("no", "run"))
