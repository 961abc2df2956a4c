"""What each kind of picture draws: its marks, colors and labels stand where the numbers put them."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from picture_cases import DATES, IMAGES, boxes, confusions, forecasts, forms, found, trials

from tfaccel.reporting.charts import (
    curve_figure,
    importance_figure,
    learning_rate_figure,
    parallel_coordinates_figure,
    scatter_figure,
)
from tfaccel.reporting.classes import confusion_figure
from tfaccel.reporting.figures import BLUE, GREEN, ORANGE, RED
from tfaccel.reporting.forecasts import Forecast, forecast_figure
from tfaccel.reporting.image_pictures import box_figure, image_grid_figure, latent_figure, prediction_figure, shown_rows


def test_predictions_name_the_true_class_and_wrong_ones_come_first():
    names = ("cat", "dog", "square")
    figure = prediction_figure(
        IMAGES[:3], labels=np.array([0, 1, 2]), predictions=np.array([0, 1, 1]), class_names=names
    )
    assert [axes.get_xlabel() for axes in figure.axes] == ["dog\nis square", "cat", "dog"]
    assert [to_hex(axes.spines["top"].get_edgecolor()) for axes in figure.axes] == [RED, GREEN, GREEN]
    long = prediction_figure(
        IMAGES[:1], labels=np.array([0]), predictions=np.array([1]), class_names=("a rather long name of a class", "b")
    )
    predicted, true = long.axes[0].get_xlabel().split("\n")
    assert (predicted, true[:6], true[-5:]) == ("b", "is a r", "class")
    labels = np.zeros(100, int)
    predictions = labels.copy()
    predictions[[7, 40]] = 1
    assert shown_rows(labels, predictions)[:4] == [7, 40, 0, 1]
    rows = shown_rows(labels, 1 - np.arange(100) // 50)
    assert (len(rows), rows[29], rows[30]) == (60, 29, 50)


def test_grid_keeps_the_end_of_a_caption():
    figure = image_grid_figure(IMAGES[:1], captions=["a rather long name of a class: -17"])
    assert figure.axes[0].get_xlabel().endswith("-17")
    colored = image_grid_figure(np.stack([np.zeros((4, 4, 3)), np.full((4, 4, 3), 9.0)]))
    assert [int(axes.images[0].get_array().max()) for axes in colored.axes] == [0, 255]


def test_boxes_are_drawn_where_they_are():
    figure = boxes()
    first, second = figure.axes
    true = [patch for patch in first.patches if to_hex(patch.get_edgecolor()) == GREEN]
    assert [patch.get_bbox().bounds for patch in true] == [(-0.5, -0.5, 10, 10), (19.5, 19.5, 10, 10)]
    assert sum(to_hex(patch.get_edgecolor()) == ORANGE for patch in first.patches) == 6
    assert sum(to_hex(patch.get_edgecolor()) == ORANGE for patch in second.patches) == 1  # the other is too unsure
    assert first.texts[0].get_text() == "square 0.99"
    assert len(second.texts) == 1


def test_a_text_without_a_free_place_is_left_out_the_least_sure_first():
    crowd = found([[0, 0, 40, 40]] * 60, [0] * 60, np.linspace(0.5, 0.99, 60))
    figure = box_figure(
        np.zeros((1, 40, 40, 1)),
        boxes=np.zeros((1, 1, 4)),
        labels=np.full((1, 1), -1),
        detections=[crowd],
        class_names=("cat",),
    )
    written = [text.get_text() for text in figure.axes[0].texts]
    assert 0 < len(written) < 60
    assert written[0] == "cat 0.99"


def test_forecasts_have_no_gap_and_an_axis_of_dates():
    figure = forecasts()
    assert len(figure.axes) == 3
    for line in figure.axes[0].lines[:3]:
        assert line.get_xdata()[0] <= 0
        assert np.all(np.diff(line.get_xdata()) == 1)
    band = figure.axes[0].collections[0].get_paths()[0].vertices[:, 0]
    assert (band.min(), band.max()) == (0, 20)
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {
        "actual",
        "forecast",
        "80 % interval",
        "seasonal naive, season 24",
    }
    dated = forecasts(DATES).axes[0]
    assert (dated.lines[0].get_xdata()[[0, -1]] == DATES[[0, -1]]).all()
    dated.figure.draw_without_rendering()
    assert "Jan" in [label.get_text() for label in dated.get_xticklabels()] + [dated.xaxis.get_offset_text().get_text()]
    one = Forecast("point", np.ones(1), np.ones(1), np.ones((1, 3)), np.ones(1))
    forecast_figure([one], num_columns=1, interval="80 %", baseline="naive").draw_without_rendering()


def test_confusions_are_darker_where_more_are():
    figure = confusion_figure({"a": np.array([[9, 1], [0, 10]])}, class_names=("cat", "dog"))
    fractions = figure.axes[0].images[0].get_array()
    assert fractions.tolist() == [[0.9, 0.1], [0.0, 1.0]]
    assert [text.get_text() for text in figure.axes[0].texts] == ["9", "1", "0", "10"]
    assert figure.axes[0].get_title() == "a: accuracy 95.0 %"
    assert confusions(40).axes[0].images[0].get_array().shape == (20, 20)


def test_scatter_has_a_dot_for_each_row():
    targets = np.linspace(-2, 7, 50)
    figure = scatter_figure(targets, {"good": targets, "bad": 3 - targets}, name="price")
    for axes, predicted in zip(figure.axes, (targets, 3 - targets), strict=True):
        assert np.array_equal(axes.lines[1].get_xydata(), np.stack([targets, predicted], axis=1))
    many = scatter_figure(np.arange(9e3), {"many": np.arange(9e3)}, name="price")
    assert len(many.axes[0].lines[1].get_xdata()) == 1800


def test_curves_begin_in_epoch_one():
    axes = curve_figure({"one": [0.1, 0.9], "other": [0.2]}, name="accuracy").axes[0]
    assert [line.get_xdata().tolist() for line in axes.lines] == [[1, 2], [1]]
    assert [line.get_color() for line in axes.lines] == [BLUE, ORANGE]
    axes.figure.draw_without_rendering()
    assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_latent_map_has_axes_and_places():
    figure = latent_figure(np.array([[0.0, 5.0], [1.0, 9.0]]), labels=np.array([0, 1]), class_names=("a", "b"))
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("first direction", "second direction")
    assert axes.collections[0].get_offsets().tolist() == [[0, 5], [1, 9]]
    pictured = latent_figure(
        np.array([[0.0, 0.0], [1.0, 1.0]]),
        labels=np.array([0, 1]),
        class_names=("a", "b"),
        images=np.ones((2, 4, 4, 1)) * np.array([0.0, 1.0])[:, None, None, None],
    )
    paper = pictured.axes[0].images[0].get_array()
    assert paper[855, 24, 3] == 0  # a dark image leaves the paper as it is
    assert paper[24, 855].tolist() == [255, 127, 14, 255]


@pytest.mark.parametrize("rising", [True, False])
def test_the_best_trial_is_orange(rising):
    values = [{"rate": 0.001}, {"rate": 0.1}]
    axes = parallel_coordinates_figure(values, [0.2, 0.8], names=["rate"], objective="o", rising=rising).axes[0]
    (best,) = [line for line in axes.lines if line.get_color() == ORANGE]
    assert best.get_ydata().tolist() == ([1, 1] if rising else [0, 0])


def test_every_one_of_few_numbers_is_written_unless_it_would_cover_another():
    labels = [text.get_text() for text in trials().axes[0].texts]
    assert {"0.1", "0.01", "0.001", "transformer", "True", "False", "99", "1"} <= set(labels)
    assert "2" not in labels


def test_forms_and_bars():
    figure = forms()
    assert [text.get_text() for text in figure.axes[0].texts] == [
        "float32",
        "float16",
        "dynamic",
        "int8",
        "qat",
        "prune+int8",
    ]
    bars = importance_figure({"a": 0.75, "b": 0.25}, objective="accuracy").axes[0]
    assert [bar.get_width() for bar in bars.patches] == [0.75, 0.25]
    assert [text.get_text() for text in bars.texts] == ["75%", "25%"]


def test_the_suggested_learning_rate_is_marked():
    rates = [1e-4, 1e-2, 1.0]
    axes = learning_rate_figure(rates, [3.0, 2.0, 50.0], [3.0, 2.5, 4.0], suggestion=1e-2).axes[0]
    of_steps, smoothed, mark = axes.lines
    assert list(smoothed.get_xdata()) == list(of_steps.get_xdata()) == rates
    assert list(mark.get_xdata()) == [1e-2, 1e-2]
    assert axes.get_ylim()[1] < 50  # a step far above the average does not flatten it
    assert axes.get_xscale() == "log"
    linear = learning_rate_figure(rates, [1.0] * 3, [1.0] * 3, logarithmic=False).axes[0]
    assert (len(linear.lines), linear.get_xscale()) == (2, "linear")
