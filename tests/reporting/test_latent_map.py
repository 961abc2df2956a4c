"""The map of examples and the table of anomalies."""

import numpy as np
import pytest
from PIL import Image

from tfaccel.errors import DataError
from tfaccel.reporting.anomalies import save_anomalies
from tfaccel.reporting.latent_map import save_latent_map, two_main_directions


def test_examples_stand_at_their_places(tmp_path):
    places = np.array([[0.0, 0.0], [1.0, 1.0]])
    save_latent_map(tmp_path / "dots.png", places, labels=np.array([0, 1]), class_names=("a", "b"))
    images = np.ones((2, 4, 4, 1)) * np.array([0.0, 1.0])[:, None, None, None]
    save_latent_map(tmp_path / "tiles.png", places, labels=np.array([0, 1]), class_names=("a", "b"), images=images)
    with Image.open(tmp_path / "dots.png") as dots, Image.open(tmp_path / "tiles.png") as tiles:
        assert dots.getpixel((30, 30)) == (31, 119, 180)
        assert dots.getpixel((870, 870)) == (255, 127, 14)
        assert tiles.getpixel((30, 30)) == (255, 255, 255)  # a dark image leaves the paper as it is
        assert tiles.getpixel((870, 870)) == (255, 127, 14)
    assert len(list(tmp_path.iterdir())) == 2


def test_main_directions_are_those_of_the_widest_spread():
    points = np.zeros((50, 3))
    points[:, 2] = np.linspace(-9, 9, 50)
    points[::2, 0] = 1.0
    flat = two_main_directions(points)
    assert np.abs(flat[:, 0]) == pytest.approx(np.abs(points[:, 2]), abs=0.5)
    assert two_main_directions(points[:, 2:]).shape == (50, 2)


def test_numbers_must_fit(tmp_path):
    with pytest.raises(DataError, match="2 places, 1 labels, no images"):
        save_latent_map(tmp_path / "m.png", np.eye(2), labels=np.array([0]), class_names=("a",))
    with pytest.raises(DataError, match="1 names, 2 classes, 2 scores"):
        save_anomalies(tmp_path / "a.csv", ["x"], ["a", "b"], np.zeros(2))
    assert not list(tmp_path.iterdir())
