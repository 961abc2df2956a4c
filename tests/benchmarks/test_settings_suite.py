"""The benchmark of settings: what is tried, how scores are compared, and that a stopped one goes on."""

import inspect
import json
from dataclasses import fields
from importlib import import_module

import pytest

from tfaccel.benchmarks.recipe_settings import RECIPE_SETTINGS
from tfaccel.benchmarks.settings_suite import SettingScores, SettingTrial, run_settings_suite, setting_scores
from tfaccel.training.training_options import TrainingOptions


@pytest.mark.parametrize("recipe", RECIPE_SETTINGS)
def test_the_first_setting_is_what_the_recipe_has(recipe):
    make_workload = import_module(f"tfaccel.recipes.{recipe}").workload
    present, parameters = RECIPE_SETTINGS[recipe].present, inspect.signature(make_workload).parameters
    options = make_workload().options
    rate = TrainingOptions(**{one.name: options[one.name] for one in fields(TrainingOptions)}).peak_learning_rate
    has = {name: parameter.default for name, parameter in parameters.items()}
    has |= {"weight_decay": None, "epochs": make_workload().epochs}
    assert present == {
        **{name: has[name] for name in present if name != "learning_rate"},
        **({"learning_rate": pytest.approx(rate)} if "learning_rate" in present else {}),
    }
    assert all(present[name] not in values for name, values in RECIPE_SETTINGS[recipe].neighbours.items())


def trial(epochs, seed, score, *, higher_is_better=True):
    return SettingTrial(
        recipe="gan",
        setting={"epochs": epochs},
        seed=seed,
        score=score,
        metric="recognised samples",
        higher_is_better=higher_is_better,
        seconds=1.0,
    )


def test_scores_are_compared_seed_by_seed():
    trials = [trial(30, 0, 0.5), trial(60, 0, 0.75), trial(30, 1, 0.625), trial(60, 1, 0.875), trial(15, 1, None)]
    present, better = setting_scores(trials)
    assert (present.setting, present.scores, present.gains) == ({"epochs": 30}, (0.5, 0.625), ())
    assert (better.setting, better.gains, better.mean_gain) == ({"epochs": 60}, (0.25, 0.25), 0.25)
    assert (present.is_better, better.is_better) == (False, True)
    lower = [trial(30, 0, 0.5, higher_is_better=False), trial(60, 0, 0.75, higher_is_better=False)]
    assert setting_scores(lower)[1].gains == (-0.25,)


@pytest.mark.parametrize(("gains", "is_better"), [((0.1,), False), ((0.1, 0.3), True), ((0.0, 0.2), False)])
def test_better_means_by_more_than_the_spread_of_several_seeds(gains, is_better):
    scores = SettingScores(recipe="gan", setting={}, metric="loss", scores=gains, gains=gains)
    assert scores.is_better is is_better


def test_what_is_done_is_not_done_again():
    done = [trial(epochs, seed, 0.5) for epochs in (30, 15, 60) for seed in (0, 1)]
    assert run_settings_suite(["gan"], num_seeds=2, done=done, save=pytest.fail, progress=pytest.fail) == done


COMMAND = """
import sys
from tfaccel.benchmarks import recipe_settings
from tfaccel.scripts import benchmark

few = recipe_settings.RecipeSettings(
    present={"epochs": 1, "width": 8}, neighbours={"epochs": (2,)}, metric="r2", higher_is_better=True
)
one = recipe_settings.RecipeSettings(present={"epochs": 1}, neighbours={})
recipe_settings.RECIPE_SETTINGS |= {"tabular_regression": few, "tabular_classification": one}
for seeds, recipes in ((1, "tabular_regression"), (2, "tabular_regression"), (1, "tabular_classification")):
    flags = [f"--recipes={recipes}", f"--seeds={seeds}", f"--out={sys.argv[1]}"]
    assert benchmark.run(["benchmark", "settings", *flags]) == 0
"""


@pytest.mark.slow
def test_command_writes_each_trial_and_goes_on(run_python, tmp_path):
    out = tmp_path / "settings.json"
    done = run_python(COMMAND, out)
    started = [line for line in done.stderr.splitlines() if line.startswith("benchmark: ")]
    of_two = ["1 of 2: tabular_regression", "2 of 2: tabular_regression"]
    wanted = [*of_two, *of_two, "1 of 1: tabular_classification"]
    assert [line.split(",")[0].removeprefix("benchmark: ") for line in started] == wanted
    data = json.loads(out.read_text())
    assert [(one["recipe"], one["seed"]) for one in data["trials"]] == [("tabular_regression", 0)] * 2 + [
        ("tabular_regression", 1)
    ] * 2 + [("tabular_classification", 0)]
    assert [(one["setting"], len(one["scores"])) for one in data["settings"]][:2] == [
        ({"epochs": 1, "width": 8}, 2),
        ({"epochs": 2, "width": 8}, 2),
    ]
    assert "epochs=1, width=8 (present)" in done.stdout
    assert data["settings"][2]["metric"] == "accuracy"
