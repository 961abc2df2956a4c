"""The learning rate that the range test suggests: from smoothed losses, up to divergence, or none with a reason."""

import dataclasses
import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from learning_rate_models import SHORT, X, Y, linear_model

import tfaccel
from tfaccel import LearningRateReport, find_learning_rate
from tfaccel.errors import DataError
from tfaccel.options import LearningRateTest
from tfaccel.tuning.learning_rate_report import SmoothedLoss, suggestion


def test_the_suggestion_trains(logical_devices):
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
    y = x @ np.ones((4, 1), "float32")
    model = linear_model()
    report = find_learning_rate(model, x, y)
    assert report.stopped_because.startswith(
        "The smoothed loss was more than 4 times its lowest value at learning rate "
    )
    assert report.reason == "The smoothed loss falls most steeply there."
    model.optimizer.learning_rate = report.suggestion
    losses = tfaccel.fit(model, x, y, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < 0.1 * report.losses[0]


def test_without_a_fall_nothing_is_suggested(logical_devices, tmp_path):
    model = linear_model()
    flat = find_learning_rate(model, X, Y, test=LearningRateTest(min_learning_rate=1e-12, max_learning_rate=1e-9))
    assert flat.suggestion is None
    assert "no more than its noise" in flat.reason
    too_high = find_learning_rate(model, X, Y, test=LearningRateTest(min_learning_rate=5.0))
    assert too_high.suggestion is None
    assert "rates were tested, and 14 are needed. Start from a lower min_learning_rate" in too_high.reason
    broken = find_learning_rate(model, np.where(X > 0, np.nan, X), Y)
    assert (broken.learning_rates, broken.suggestion) == ((), None)
    assert broken.reason == "The loss is NaN or infinite at learning rate 1.00e-07, step 1."
    assert dict(broken.rows())["suggested learning rate"] == "none"
    with pytest.raises(DataError, match="needs at least one"):
        broken.save_picture(tmp_path / "rates.png")
    flat.save_picture(tmp_path / "rates.png")
    flat.save(tmp_path / "rates.json")
    assert LearningRateReport.from_json(json.loads((tmp_path / "rates.json").read_text())) == flat
    assert (tmp_path / "rates.png").stat().st_size > 5000


def test_a_gradient_that_overflows_for_ever_ends_the_test(logical_devices):
    @tf.custom_gradient
    def broken_gradient(value):
        return value, lambda upstream: upstream * float("inf")

    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    model = linear_model(optimizer, loss=lambda y, prediction: broken_gradient(tf.reduce_mean(prediction, axis=-1)))
    report = find_learning_rate(model, X, Y, test=SHORT)
    assert report.reason == "The gradients are not finite at learning rate 1.00e-07, whatever the loss scale."


def test_losses_are_smoothed_as_lightning_does():
    losses = np.random.default_rng(0).normal(size=50) + 3
    smoothed = SmoothedLoss(LearningRateTest())
    average, expected = 0.0, []
    for number, loss in enumerate(losses, start=1):
        average = 0.98 * average + 0.02 * loss
        expected.append(average / (1 - 0.98**number))
        smoothed.add(loss)
    np.testing.assert_allclose(smoothed.values, expected, rtol=1e-12)


@pytest.mark.parametrize(("sign", "losses"), [(1, [1.0, 3.9, 4.1]), (-1, [-1.0, 1.9, 2.1])])
def test_divergence_is_measured_from_the_lowest_loss(sign, losses):
    smoothed = SmoothedLoss(LearningRateTest(smoothing=0.0))
    seen = []
    for loss in losses:
        smoothed.add(loss)
        seen.append(smoothed.diverged)
    assert seen == [False, False, True]


def test_the_steepest_fall_over_the_logarithm_is_suggested():
    test = LearningRateTest(min_learning_rate=1e-6, max_learning_rate=1.0, num_steps=61)
    rates = [test.learning_rate(step) for step in range(61)]
    curve = [1 - 1 / (1 + math.exp(-4 * (math.log10(rate) + 3))) for rate in rates]  # steepest at 1e-3
    found, reason = suggestion(rates, curve, curve, test)
    assert found == pytest.approx(1e-3)
    assert "most steeply" in reason
    early = dataclasses.replace(test, skip_first=0)
    spike = [5.0, *curve[1:]]
    assert suggestion(rates, spike, spike, early)[0] < 1e-5
    assert suggestion(rates, spike, spike, test)[0] == pytest.approx(1e-3)  # the first rates do not count
    _, ending = suggestion(rates[:32], curve[:32], curve[:32], test)
    assert "still falls at the highest tested rate" in ending
    noise = list(np.random.default_rng(0).normal(size=61))
    assert suggestion(rates, noise, smoothed_of(noise, test), test)[0] is None


def smoothed_of(losses, test):
    smoothed = SmoothedLoss(test)
    return [smoothed.add(loss) for loss in losses]
