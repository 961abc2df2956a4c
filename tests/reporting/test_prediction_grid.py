"""The picture of predictions: wrong ones first, marked, and nothing half-written."""

import numpy as np
import pytest
from PIL import Image

from tfaccel.errors import DataError
from tfaccel.reporting.prediction_grid import caption_of, save_prediction_grid, shown_rows

NAMES = ("cat", "dog", "a name too long for a caption")


def draw(path, labels, predictions, *, channels=1, dtype=np.float32):
    images = np.random.default_rng(0).uniform(-3, 9, (len(labels), 8, 8, channels)).astype(dtype)
    save_prediction_grid(path, images, labels=np.array(labels), predictions=np.array(predictions), class_names=NAMES)
    with Image.open(path) as picture:
        return np.asarray(picture)


def test_frames_tell_right_from_wrong(tmp_path):
    picture = draw(tmp_path / "p.png", [0, 1, 1], [0, 0, 1])
    width = picture.shape[1] // 3
    reds = [picture[0, column * width, 0] > picture[0, column * width, 1] for column in range(3)]
    assert reds == [True, False, False]


@pytest.mark.parametrize(("channels", "dtype"), [(1, np.uint8), (3, np.float32)])
def test_many_images_fill_a_grid_of_ten_by_six(tmp_path, channels, dtype):
    small = draw(tmp_path / "p.png", [0] * 10, [0] * 10, channels=channels, dtype=dtype)
    large = draw(tmp_path / "p.png", [0] * 200, [1] * 100 + [0] * 100, channels=channels, dtype=dtype)
    assert large.shape == (6 * small.shape[0], small.shape[1], 3)
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.png"]


def test_wrong_ones_come_first_and_take_half_of_the_grid_at_most():
    labels = np.zeros(100, int)
    predictions = labels.copy()
    predictions[[7, 40]] = 1
    assert shown_rows(labels, predictions)[:4] == [7, 40, 0, 1]
    rows = shown_rows(labels, 1 - np.arange(100) // 50)
    assert (len(rows), rows[29], rows[30]) == (60, 29, 50)


def test_captions():
    assert caption_of(1, 1, NAMES) == "dog"
    assert caption_of(1, 0, NAMES) == "cat (is dog)"
    assert caption_of(2, 2, NAMES) == "a name too lo..."
    assert caption_of(0, 0, ("猫",)) == "?"


@pytest.mark.parametrize(("labels", "predictions"), [([], []), ([0, 1], [0])])
def test_numbers_must_fit(tmp_path, labels, predictions):
    with pytest.raises(DataError, match="needs at least one image, and a label and a prediction for each"):
        draw(tmp_path / "p.png", labels, predictions)
    assert list(tmp_path.iterdir()) == []
