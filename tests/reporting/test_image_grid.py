"""The grid of images: one tile for each, captions below, and nothing half-written."""

import numpy as np
import pytest
from PIL import Image

from tfaccel.errors import DataError
from tfaccel.reporting.image_grid import save_image_grid


@pytest.mark.parametrize(("channels", "dtype"), [(1, np.uint8), (3, np.float32)])
def test_images_stand_row_by_row(tmp_path, channels, dtype):
    images = np.zeros((5, 4, 4, channels), dtype)
    images[3] = 9
    save_image_grid(tmp_path / "grid.png", images, captions=["one", "two", "three", "four", "five"], num_columns=2)
    with Image.open(tmp_path / "grid.png") as picture:
        assert picture.size == (2 * 75, 3 * 89)
        tiles = [picture.getpixel((number % 2 * 75 + 30, number // 2 * 89 + 30)) for number in range(5)]
    assert tiles == [(0, 0, 0)] * 3 + [(255, 255, 255)] + [(0, 0, 0)]
    assert [entry.name for entry in tmp_path.iterdir()] == ["grid.png"]


@pytest.mark.parametrize(("num_images", "captions"), [(0, None), (2, ["one"])])
def test_captions_must_fit_the_images(tmp_path, num_images, captions):
    with pytest.raises(DataError, match=f"Received: {num_images} images"):
        save_image_grid(tmp_path / "grid.png", np.zeros((num_images, 4, 4, 1)), captions=captions)
    assert not list(tmp_path.iterdir())
