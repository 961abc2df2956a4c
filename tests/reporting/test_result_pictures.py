"""Pictures and tables of results: axes, confusions, scatter plots, forecasts; refused where they cannot be drawn."""

import doctest
import importlib
import re

import numpy as np
import pytest
from PIL import Image

from tfaccel.errors import DataError
from tfaccel.reporting.class_scores import class_scores, softmax
from tfaccel.reporting.comparison_table import comparison_lines
from tfaccel.reporting.confusion_picture import save_confusion_picture
from tfaccel.reporting.curve_picture import save_curve_picture
from tfaccel.reporting.forecast_picture import Forecast, save_forecast_picture
from tfaccel.reporting.interval_calibration import interval_factors, with_factors
from tfaccel.reporting.picture_files import BLUE, ORANGE
from tfaccel.reporting.plot_axes import Axes, ticks
from tfaccel.reporting.scatter_picture import save_scatter_picture


def pixels(path):
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-63, 24, [-60, -40, -20, 0, 20]),
        (1e6, 1.04e6, [1e6, 1.01e6, 1.02e6, 1.03e6, 1.04e6]),
    ],
)
def test_ticks_are_round_numbers(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_axes_place_points_and_survive_a_single_number():
    axes = Axes(0, 0, 100, 50, (2.0, 2.0), (-1.0, 1.0))
    assert axes.x_range == (2.0, 3.0)
    assert axes.place(2.5, 0.0) == (50.0, 25.0)


def test_confusions_are_darker_where_more_are(tmp_path):
    save_confusion_picture(tmp_path / "p.png", {"a": np.array([[9, 1], [0, 10]])}, class_names=("cat", "dog"))
    picture = pixels(tmp_path / "p.png")
    cells = [picture[90 + 20 + 180 * row, 110 + 20 + 180 * column, 0] for row in (0, 1) for column in (0, 1)]
    assert cells[3] < cells[0] < cells[1] < cells[2] == 255
    assert [file.name for file in tmp_path.iterdir()] == ["p.png"]
    many = tuple(f"class number {number}" for number in range(40))
    save_confusion_picture(tmp_path / "p.png", {"a": np.eye(40, dtype=int), "b": np.ones((40, 40))}, class_names=many)
    assert pixels(tmp_path / "p.png").shape == (474, 878, 3)


def test_scatter_has_a_dot_for_each_row(tmp_path):
    targets = np.linspace(-2, 7, 50)
    save_scatter_picture(tmp_path / "p.png", targets, {"good": targets, "bad": 3 - targets}, name="price")
    is_blue = np.abs(pixels(tmp_path / "p.png") - BLUE).sum(axis=-1) < 10
    rows, columns = np.nonzero(is_blue)
    left, right = columns < 450, columns >= 450
    assert np.corrcoef(rows[left], columns[left])[0, 1] < -0.99  # Pictures count rows from above.
    assert np.corrcoef(rows[right], columns[right])[0, 1] > 0.99
    save_scatter_picture(tmp_path / "p.png", np.ones(9), {"constant": np.ones(9)}, name="price")
    save_scatter_picture(tmp_path / "p.png", np.arange(9e3), {"many": np.arange(9e3)}, name="price")


def test_forecasts_show_both_forecasts_and_the_interval(tmp_path):
    wave = np.sin(np.arange(60.0) / 4)
    forecast = Forecast("wave", wave[:40], wave[40:], wave[40:, None] + [-0.4, 0.2, 0.5], wave[20:40])
    save_forecast_picture(tmp_path / "p.png", [forecast] * 5, num_columns=2, interval="80 %", baseline="naive")
    picture = pixels(tmp_path / "p.png")
    assert picture.shape == (3 * 314 + 40, 1016, 3)
    panel = picture[40:354, :508]
    for color in (BLUE, ORANGE, (190, 212, 240)):
        assert (np.abs(panel - color).sum(axis=-1) == 0).sum() > 100
    assert (np.abs(picture[700:, 508:] - BLUE).sum(axis=-1) == 0).sum() == 0  # The last place is empty.
    one = Forecast("point", np.ones(1), np.ones(1), np.ones((1, 3)), np.ones(1))
    save_forecast_picture(tmp_path / "p.png", [one], num_columns=1, interval="80 %", baseline="naive")


def test_what_cannot_be_drawn_is_refused(tmp_path):
    with pytest.raises(DataError, match=re.escape("Each model needs counts of shape (2, 2)")):
        save_confusion_picture(tmp_path / "p.png", {"a": np.zeros((3, 3))}, class_names=("a", "b"))
    with pytest.raises(DataError, match=r"there must be a model\. Received: none"):
        save_confusion_picture(tmp_path / "p.png", {}, class_names=("a", "b"))
    with pytest.raises(DataError, match=re.escape("a prediction for each of (3,) numbers. Received: {'a': (2,)}.")):
        save_scatter_picture(tmp_path / "p.png", np.zeros(3), {"a": np.zeros(2)}, name="x")
    bad = Forecast("wave", np.zeros(3), np.zeros(4), np.zeros((4, 2)), np.zeros(4))
    for forecasts in ([], [bad]):
        with pytest.raises(DataError, match="three quantiles and the baseline must be of one length"):
            save_forecast_picture(tmp_path / "p.png", forecasts, num_columns=1, interval="", baseline="")
    assert list(tmp_path.iterdir()) == []


def test_scores():
    probabilities = softmax(np.array([[2.0, 0.0], [0.0, 1000.0], [3.0, 1.0]]))
    assert np.isfinite(probabilities).all()
    assert probabilities.sum(axis=1) == pytest.approx(1.0)
    scores = class_scores(np.array([0, 1, 1]), probabilities)
    assert (scores["accuracy"], scores["balanced accuracy"]) == (pytest.approx(2 / 3), 0.75)
    assert comparison_lines({"a": {"x": None, "y": 2.0}}, digits=1) == ["   x    y", "a  -  2.0"]


def test_intervals_become_as_wide_as_they_have_to_be():
    generator = np.random.default_rng(0)
    future = generator.normal([0.0, 5.0], [1.0, 3.0], (2000, 4, 2))
    quantiles = np.stack([np.full(future.shape, [0.0, 5.0]) + shift for shift in (-0.5, 0.0, 2.0)], axis=-1)
    factors = interval_factors(future[:1000], quantiles[:1000])
    wider = with_factors(quantiles[1000:], factors)
    inside = (future[1000:] >= wider[..., 0]) & (future[1000:] <= wider[..., 2])
    assert inside.mean(axis=(0, 1)) == pytest.approx([0.8, 0.8], abs=0.03)
    assert factors[0] == pytest.approx([1.2816 / 0.5, 1.2816 / 2], rel=0.1)
    assert np.array_equal(wider[..., 1], quantiles[1000:, ..., 1])
    assert interval_factors(future[:0], quantiles[:0]).tolist() == [[1, 1], [1, 1]]


NAMES = "class_scores comparison_table confusion_picture curve_picture forecast_picture forecast_scores"
NAMES += " interval_calibration picture_files plot_axes scatter_picture"


@pytest.mark.parametrize("name", NAMES.split())
def test_examples(name):
    result = doctest.testmod(importlib.import_module(f"tfaccel.reporting.{name}"))
    assert (result.failed, result.attempted > 0) == (0, True)


def test_curves_of_runs_have_a_color_each(tmp_path):
    save_curve_picture(tmp_path / "c.png", {"one": [0.1, 0.9], "other": [0.2]}, name="accuracy")
    found = {tuple(pixel) for pixel in pixels(tmp_path / "c.png").reshape(-1, 3).tolist()}
    assert {BLUE, ORANGE} <= found
    for curves in ({}, {"one": []}, {name: [1.0] for name in "abcd"}):
        with pytest.raises(DataError, match="A picture needs the values of 1 to 3 runs"):
            save_curve_picture(tmp_path / "d.png", curves, name="accuracy")
    assert not (tmp_path / "d.png").exists()
