"""What `tfaccel benchmark settings` reads and shows."""

from dataclasses import asdict

import pytest

from tfaccel.benchmarks.recipe_settings import RECIPE_SETTINGS
from tfaccel.benchmarks.settings_suite import SettingScores, SettingTrial
from tfaccel.errors import TfaccelError
from tfaccel.files import write_json
from tfaccel.scripts.settings_table import chosen_recipes, make_row, print_settings, read_trials


def test_recipes_are_chosen_by_name():
    assert chosen_recipes(["all"]) == list(RECIPE_SETTINGS)
    assert chosen_recipes(["gan", "translation", "gan"]) == ["gan", "translation"]
    with pytest.raises(TfaccelError, match=r"--recipes: no settings of 'gann'\. Did you mean 'gan'\? Recipes: auto"):
        chosen_recipes(["gann"])


def test_trials_are_read_back(tmp_path):
    path = tmp_path / "settings.json"
    assert read_trials(path) == []
    trial = SettingTrial(
        recipe="gan", setting={"epochs": 30}, seed=0, score=None, metric="", higher_is_better=True, seconds=1.5
    )
    write_json(path, {"trials": [asdict(trial)]})
    assert read_trials(path) == [trial]


@pytest.mark.parametrize("text", ["{}", "no JSON", '{"trials": [{"recipe": "gan"}]}', "[]"])
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(TfaccelError, match=r"--out: .*other\.json is not a settings report to continue"):
        read_trials(path)
    assert path.read_text() == text


def test_a_row_says_what_is_changed_and_gained(capsys):
    setting = {**RECIPE_SETTINGS["image_classification"].present, "epochs": 12}
    scores = SettingScores(
        recipe="image_classification", setting=setting, metric="accuracy", scores=(0.5, 0.75), gains=(-0.25, 0.0)
    )
    assert make_row(scores) == [
        "image_classification",
        "epochs=12",
        "accuracy",
        "0.6250",
        "0.1768",
        "2",
        "-0.1250",
        "0.1768",
        "no",
    ]
    print_settings({"settings": [scores.to_json()]})
    assert "epochs=12" in capsys.readouterr().out
