"""The two main directions of points, and the table of anomalies."""

import numpy as np
import pytest

from tfaccel.errors import DataError
from tfaccel.reporting.image_pictures import two_main_directions
from tfaccel.reporting.tables import save_anomalies


def test_main_directions_are_those_of_the_widest_spread():
    points = np.zeros((50, 3))
    points[:, 2] = np.linspace(-9, 9, 50)
    points[::2, 0] = 1.0
    flat = two_main_directions(points)
    assert np.abs(flat[:, 0]) == pytest.approx(np.abs(points[:, 2]), abs=0.5)
    assert two_main_directions(points[:, 2:]).shape == (50, 2)


def test_numbers_must_fit(tmp_path):
    with pytest.raises(DataError, match="1 names, 2 classes, 2 scores"):
        save_anomalies(tmp_path / "a.csv", ["x"], ["a", "b"], np.zeros(2))
    assert not list(tmp_path.iterdir())
