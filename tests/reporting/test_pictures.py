"""All kinds of pictures: texts inside the picture and apart, named axes, whole files, and errors for wrong numbers."""

import itertools
import logging
import re
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.text import Text
from picture_cases import FIGURES, IMAGES, LABELS
from PIL import Image

from tfaccel.errors import DataError
from tfaccel.reporting import figures
from tfaccel.reporting.charts import (
    curve_figure,
    importance_figure,
    learning_rate_figure,
    parallel_coordinates_figure,
    save_curve_picture,
    scatter_figure,
    size_metric_figure,
)
from tfaccel.reporting.classes import confusion_figure
from tfaccel.reporting.figures import new_figure, saved
from tfaccel.reporting.forecasts import Forecast, forecast_figure
from tfaccel.reporting.image_pictures import box_figure, image_grid_figure, latent_figure, prediction_figure


def texts(figure):
    """Every text that can be seen, with its rectangle in pixels."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    seen = {}
    for text in figure.findobj(Text):
        area = text.get_window_extent(renderer)
        is_tick = text.get_text() and not figure.bbox.overlaps(area)  # a tick beyond the axes is not drawn
        if text.get_visible() and text.get_text().strip() and area.width > 0 and not is_tick:
            seen[text] = area
    in_axes = {tick for axes in figure.axes for tick in (*axes.get_xticklabels(), *axes.get_yticklabels())}
    drawn = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis._update_ticks()
        for label in (tick.label1, tick.label2)
    }
    return {text: area for text, area in seen.items() if text not in in_axes or text in drawn}


@pytest.mark.parametrize("name", FIGURES)
def test_texts_are_inside_the_picture_and_apart(name):
    figure = FIGURES[name]()
    found_texts = texts(figure)
    assert found_texts
    width, height = figure.bbox.size
    for text, area in found_texts.items():
        assert area.x0 >= -1, text
        assert area.y0 >= -1, text
        assert area.x1 <= width + 1, text
        assert area.y1 <= height + 1, text
    for (one, area), (other, second) in itertools.combinations(found_texts.items(), 2):
        overlap_x = min(area.x1, second.x1) - max(area.x0, second.x0)
        overlap_y = min(area.y1, second.y1) - max(area.y0, second.y0)
        assert min(overlap_x, overlap_y) <= 1, (one, other)


@pytest.mark.parametrize("name", [name for name in FIGURES if name not in ("boxes", "grid", "predictions", "trials")])
def test_axes_say_what_they_show(name):
    figure = FIGURES[name]()
    if name not in ("importance", "forecasts of dates"):  # bars with names, and dates, speak for themselves
        assert all(axes.get_xlabel() for axes in figure.axes)
    figure.draw_without_rendering()
    for legend in figure.legends:
        assert not any(legend.get_window_extent().overlaps(axes.bbox) for axes in figure.axes)


def test_a_picture_is_written_whole_or_not_at_all(tmp_path, caplog, monkeypatch):
    save_curve_picture(tmp_path / "curves.png", {"one": [0.1, 0.9]}, name="accuracy")
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.size == (640, 420)

    def broken():
        figure = new_figure(50, 50)
        figure.text(0.5, 0.5, "x", fontsize=-1)
        monkeypatch.setattr(figure, "savefig", lambda *args, **kwargs: 1 / 0)
        return figure

    with pytest.raises(ZeroDivisionError):
        saved(broken)(tmp_path / "broken.png")
    monkeypatch.setattr(figures.importlib.util, "find_spec", lambda name: None)
    with caplog.at_level(logging.WARNING, "tfaccel"):
        save_curve_picture(tmp_path / "none.png", {"one": [0.1]}, name="accuracy")
    assert "Skipping none.png because matplotlib is not installed: pip install matplotlib" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]


WAVE = Forecast("wave", np.zeros(3), np.zeros(4), np.zeros((4, 2)), np.zeros(4))
SHORT = Forecast("wave", np.zeros(3), np.zeros(4), np.zeros((4, 3)), np.zeros(4), np.zeros(5))
ONE_BOX = {"boxes": np.zeros((2, 1, 4)), "labels": np.zeros((2, 1), int), "class_names": ("a",)}
REFUSED = [
    ("counts of shape (2, 2)", lambda: confusion_figure({"a": np.zeros((3, 3))}, class_names=("a", "b"))),
    ("there must be a model. Received: none", lambda: confusion_figure({}, class_names=("a", "b"))),
    (
        "a prediction for each of (3,) numbers. Received: {'a': (2,)}.",
        lambda: scatter_figure(np.zeros(3), {"a": np.zeros(2)}, name="x"),
    ),
    (
        "three quantiles and the baseline must have the same length",
        lambda: forecast_figure([], num_columns=1, interval="", baseline=""),
    ),
    ("Received: [((4,), (4, 2), (4,))]", lambda: forecast_figure([WAVE], num_columns=1, interval="", baseline="")),
    ("`times` must cover past and future", lambda: forecast_figure([SHORT], num_columns=1, interval="", baseline="")),
    ("values of 1 to 3 runs", lambda: curve_figure({}, name="accuracy")),
    ("values of 1 to 3 runs", lambda: curve_figure({"one": []}, name="accuracy")),
    ("values of 1 to 3 runs", lambda: curve_figure({name: [1.0] for name in "abcd"}, name="accuracy")),
    ("Received: 0 images", lambda: image_grid_figure(np.zeros((0, 4, 4, 1)))),
    ("Received: 2 images, 1 captions", lambda: image_grid_figure(np.zeros((2, 4, 4, 1)), captions=["one"])),
    (
        "a label and a prediction for each",
        lambda: prediction_figure(IMAGES[:2], labels=LABELS[:2], predictions=LABELS[:1], class_names=("a",)),
    ),
    ("2 places, 1 labels, no images", lambda: latent_figure(np.eye(2), labels=LABELS[:1], class_names=("a",))),
    (
        "2 images, 2 boxes, 2 labels, 1 detections",
        lambda: box_figure(np.zeros((2, 4, 4, 1)), detections=[SimpleNamespace()], **ONE_BOX),
    ),
    ("Received: 0 trials, 0 scores", lambda: parallel_coordinates_figure([], [], names=[], objective="o", rising=True)),
    ("Received numbers of values: [1, 2, 1].", lambda: learning_rate_figure([0.1], [1.0, 2.0], [1.0])),
    ("Received numbers of values: [0, 0, 0].", lambda: learning_rate_figure([], [], [])),
    ("at least one hyperparameter", lambda: importance_figure({}, objective="o")),
    ("at least one variant with both", lambda: size_metric_figure([], metric="accuracy", limit=0.9)),
]


@pytest.mark.parametrize(("message", "draw"), REFUSED)
def test_what_cannot_be_drawn_is_refused(message, draw, tmp_path):
    with pytest.raises(DataError, match=re.escape(message)):
        saved(draw)(tmp_path / "p.png")
    assert list(tmp_path.iterdir()) == []
