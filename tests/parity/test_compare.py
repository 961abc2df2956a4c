"""The difference of two runs: relative to large values, absolute for small ones, infinite for what has no partner."""

import math

import numpy as np
import pytest

from tfaccel.parity.compare import difference, largest_difference


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([0.5, 0.25], [0.5, 0.0], 0.25),
        ([9.0, 0.0], [10.0, 0.5], 0.1),
        ([1.0], [1.0], 0.0),
        ([True, False], [True, True], 1.0),
        ([], [], 0.0),
        ([math.nan, 1.0], [math.nan, 1.0], 0.0),
        ([math.inf, 1.0], [math.inf, 1.5], 0.5 / 1.5),
        ([math.nan], [math.inf], math.inf),
        ([-math.inf], [math.inf], math.inf),
        ([math.nan, 1.0], [0.0, 1.0], math.inf),
        ([0.0, 1.0], [math.nan, 1.0], math.inf),
        ([1.0], [[1.0]], math.inf),
        ([1.0, 2.0], [1.0], math.inf),
    ],
)
def test_difference(a, b, expected):
    assert difference(np.array(a), np.array(b)) == pytest.approx(expected)


def test_low_precision_values_are_compared_in_full():
    assert difference(np.float16([60000.0]), np.float16([-60000.0])) == pytest.approx(2.0)


def test_largest_difference_names_the_value():
    reference = {"near": np.array([1.0]), "far": np.array([0.0])}
    assert largest_difference({"near": np.array([1.1]), "far": np.array([0.5])}, reference) == (0.5, "far")


def test_every_replica_is_compared_with_the_same_reference():
    values = {"weight": np.array([1.0]), "weight on replica 1": np.array([1.25])}
    assert largest_difference(values, {"weight": np.array([1.0])}) == (0.25, "weight on replica 1")


def test_values_without_a_partner_are_infinitely_far():
    one, two = {"a": np.array(1.0)}, {"a": np.array(1.0), "b": np.array(1.0)}
    assert largest_difference(one, two) == (math.inf, "b (only in the reference)")
    assert largest_difference(two, one) == (math.inf, "b (only in the run)")
