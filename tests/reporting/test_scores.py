"""Scores of classes and forecasts, the table that compares them, and intervals that are as wide as they have to be."""

import numpy as np
import pytest

from tfaccel.reporting.classes import class_scores, softmax
from tfaccel.reporting.forecasts import interval_factors, with_factors
from tfaccel.reporting.tables import comparison_lines


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
