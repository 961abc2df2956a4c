"""Pictures of a search: the best trial's line, axes for every kind of value, bars; refused where there is nothing."""

import doctest
import importlib

import numpy as np
import pytest
from PIL import Image

from tfaccel.errors import DataError
from tfaccel.reporting.importance_picture import save_importance_picture
from tfaccel.reporting.parallel_coordinates_picture import save_parallel_coordinates
from tfaccel.reporting.picture_files import BLUE, ORANGE


def pixels(path):
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


@pytest.mark.parametrize("name", ["parallel_coordinates_picture", "importance_picture"])
def test_examples(name):
    outcome = doctest.testmod(importlib.import_module(f"tfaccel.reporting.{name}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0


@pytest.mark.parametrize("rising", [True, False])
def test_the_best_trial_is_orange(tmp_path, rising):
    trials = [{"rate": 0.001}, {"rate": 0.1}]
    save_parallel_coordinates(tmp_path / "p.png", trials, [0.2, 0.8], names=["rate"], objective="o", rising=rising)
    orange = np.argwhere((pixels(tmp_path / "p.png") == ORANGE).all(axis=2))
    middle = 70 + 320 / 2
    assert (orange[:, 0] < middle).all() if rising else (orange[:, 0] > middle).all()


def test_every_kind_of_value_has_an_axis(tmp_path):
    trials = [
        {"rate": 0.1, "model": "a", "ema": True, "same": 3},
        {"rate": 0.001, "model": "b", "ema": False, "same": 3, "units": 8},
        {"rate": 0.01, "model": "c", "ema": False, "same": 3},
    ]
    names = ["rate", "model", "ema", "same", "units"]
    path = tmp_path / "p.png"
    save_parallel_coordinates(path, trials, [0.1, 0.2, 0.3], names=names, objective="accuracy", rising=True,
                              logarithmic=["rate"])  # fmt: skip
    assert pixels(path).shape == (430, 80 + 5 * 150 + 80, 3)
    assert [file.name for file in tmp_path.iterdir()] == ["p.png"]


def test_every_one_of_few_numbers_is_written_over_the_lines(tmp_path):
    trials = [{"width": width} for width in (16, 32, 64)]
    save_parallel_coordinates(tmp_path / "p.png", trials, [0.5, 0.5, 0.5], names=["width"], objective="o", rising=True)
    found = pixels(tmp_path / "p.png")
    for width in (16, 32, 64):
        y = round(70 + 320 * (1 - (width - 16) / 48))
        label = found[y - 3 : y + 4, 87:97]
        assert (label.max(axis=2) < 110).any()  # black letters
        assert not (label == ORANGE).all(axis=2).any()  # on white, though the best trial's line passes here


def test_bars_are_as_long_as_their_shares(tmp_path):
    save_importance_picture(tmp_path / "p.png", {"a": 0.75, "b": 0.25}, objective="accuracy")
    blue = (pixels(tmp_path / "p.png") == BLUE).all(axis=2).sum(axis=1)
    assert sorted(set(blue[blue > 60])) == [76, 226]


def test_nothing_to_draw_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"needs a score for each. Received: 0 trials, 0 scores"):
        save_parallel_coordinates(tmp_path / "p.png", [], [], names=[], objective="o", rising=True)
    with pytest.raises(DataError, match=r"needs at least one hyperparameter"):
        save_importance_picture(tmp_path / "p.png", {}, objective="o")
    assert list(tmp_path.iterdir()) == []
