"""How images are moved: amounts stay in their bounds, and the middle is what they turn about."""

import numpy as np

from tfaccel.data.images.image_data import ImageMoves


def transforms(num_images=1000, *, image_size=8, **amounts):
    moves = ImageMoves(**{"rotation": 0.0, "zoom": 0.0, "shift": 0.0, **amounts})
    return moves.transforms(np.random.default_rng(1), num_images, image_size)


def test_nothing_moves_by_nothing():
    assert np.array_equal(transforms(3), np.tile([1, 0, 0, 0, 1, 0, 0, 0], (3, 1)))


def test_rotation_turns_about_the_middle():
    a0, a1, a2, b0, b1, b2, *_ = transforms(rotation=0.2).T
    angles = np.arctan2(b0, a0)
    assert 0.19 < angles.max() <= 0.2 and -0.2 <= angles.min() < -0.19
    assert np.allclose(a0 * b1 - a1 * b0, 1.0, atol=1e-6)
    assert np.allclose(a0 * 3.5 + a1 * 3.5 + a2, 3.5, atol=1e-5)
    assert np.allclose(b0 * 3.5 + b1 * 3.5 + b2, 3.5, atol=1e-5)


def test_zoom_scales_width_and_height_apart():
    a0, _, _, _, b1, _, *_ = transforms(zoom=0.1).T
    for scale in (a0, b1):
        assert np.exp(-0.1) <= scale.min() < 0.92 and 1.08 < scale.max() <= np.exp(0.1) + 1e-6
    assert abs(np.corrcoef(a0, b1)[0, 1]) < 0.2


def test_shift_is_a_part_of_the_size():
    small, large = transforms(shift=0.1), transforms(shift=0.1, image_size=80)
    assert 0.75 < np.abs(small[:, 2]).max() <= 0.8
    assert np.allclose(large[:, [2, 5]], 10 * small[:, [2, 5]])
