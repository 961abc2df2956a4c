"""What comparing a step of several replicas with one device's finds, by kind of state, and what is rounding."""

import numpy as np
import pytest

from tfaccel.training.proof.variable_difference import Tolerance, difference

TOLERANCE = Tolerance(5e-4, 1e-4)
INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("before", "one", "many", "differs"),
    [
        ([-INF, -INF], [3.0, -INF], [3.0, -INF], False),
        ([-INF, -INF], [3.0, -INF], [2.0, -INF], True),  # the largest value so far of each class
        ([INF, INF], [3.0, 1.0], [3.0, 2.0], True),
        ([0.0, 0.0], [NAN, 1.0], [0.5, 1.0], False),  # one device has failed there
        ([0.0, 0.0], [NAN, 1.0], [NAN, 0.5], True),
        ([0.0, 0.0], [1.0, 1.0], [NAN, 1.0], True),
        ([0j, 0j], [1j, 2j], [1j * (1 + 1e-7), 2j], False),
        ([0j, 0j], [1j, 2j], [1.01j, 2j], True),
    ],
)
def test_values_that_are_finite_are_compared(before, one, many, differs):
    before, one, many = (np.array(value) for value in (before, one, many))
    assert difference(before, one, one, many, TOLERANCE, has_slots=False)[0] == differs
    if not np.isinf(one).any():
        assert TOLERANCE.of_output(many, one)[0] == differs
    if one.dtype.kind == "f":
        assert TOLERANCE.of_log(many, one)[0] == differs
