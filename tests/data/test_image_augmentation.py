"""Augmented batches: the same for the same seed and epoch, of the same shapes, and changed as the name says."""

import numpy as np
import pytest

from tfaccel.data.epochs import Part
from tfaccel.data.images.image_set import digits
from tfaccel.errors import DataError

NAMES = ("flip", "crop", "randaugment", "mixup", "cutmix", "cutout")


@pytest.fixture
def batches(logical_devices):
    import tensorflow as tf

    generator = np.random.default_rng(0)
    images = generator.uniform(0, 255, (3, 16, 8, 8, 1)).astype(np.float32)
    labels = np.eye(10, dtype=np.float32)[generator.integers(0, 10, (3, 16))]
    return tf.data.Dataset.from_tensor_slices((images, labels))


def read(batches, name, *, seed=0, epoch=0, augmentation=None):
    from tfaccel.data.images.image_data import ImageAugmentation

    augmentation = augmentation or ImageAugmentation(name, digits())
    return [
        np.stack(part)
        for part in zip(*augmentation.apply(batches, Part(global_batch_size=16, seed=seed, epoch=epoch)), strict=True)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_batches_follow_from_seed_and_epoch(batches, name):
    from tfaccel.data.images.image_data import AUGMENTATIONS, ImageAugmentation

    assert AUGMENTATIONS == NAMES
    one = ImageAugmentation(name, digits())
    first, _ = read(batches, name, seed=1, epoch=2)
    others = [read(batches, name, seed=seed, epoch=epoch, augmentation=one)[0] for seed, epoch in ((1, 3), (2, 2))]
    again, _ = read(batches, name, seed=1, epoch=2, augmentation=one)  # what was drawn before does not matter
    plain = np.stack([images for images, _ in batches.as_numpy_iterator()])
    assert first.shape == plain.shape
    assert np.array_equal(first, again)
    assert all(not np.array_equal(first, other) for other in others)
    assert not np.array_equal(first, plain)
    assert first.min() >= 0
    assert first.max() <= 255.01


def test_labels_are_mixed_with_their_images(batches):
    for name in ("mixup", "cutmix"):
        _, labels = read(batches, name)
        assert labels.sum(axis=-1) == pytest.approx(1, abs=1e-5)
        assert ((labels > 0).sum(axis=-1) > 1).any()
    for name in ("flip", "crop", "randaugment", "cutout"):
        _, labels = read(batches, name)
        assert set(labels.ravel()) == {0.0, 1.0}


def test_flips_mirror_some_images(batches):
    plain = np.stack([images for images, _ in batches.as_numpy_iterator()])
    flipped, _ = read(batches, "flip")
    same = np.isclose(flipped, plain, atol=1e-3).all(axis=(2, 3, 4))
    mirrored = np.isclose(flipped, plain[:, :, :, ::-1], atol=1e-3).all(axis=(2, 3, 4))
    assert (same | mirrored).all()
    assert 10 < mirrored.sum() < 38


def test_unknown_names_are_refused(logical_devices):
    from tfaccel.data.images.image_data import ImageAugmentation

    with pytest.raises(DataError, match=r"There is no augmentation .mixupp.\. Did you mean .mixup."):
        ImageAugmentation("mixupp", digits())


@pytest.mark.parametrize("name", ["crop", "mixup", "cutmix", "cutout"])
def test_pixels_stay_float32_under_mixed_precision(batches, name):
    import keras

    policy = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("mixed_bfloat16")
        mixed, _ = read(batches, name)
    finally:
        keras.config.set_dtype_policy(policy)
    assert np.array_equal(mixed, read(batches, name)[0])


def test_those_that_do_the_same_are_traced_once(batches):
    from tfaccel.data.images.image_data import ImageAugmentation, _traced

    _traced.cache_clear()
    shapes = ((16, 8, 8, 1), (16, 10))
    one, same, other = (ImageAugmentation(name, digits()) for name in ("flip", "flip", "mixup"))
    assert one == same
    assert one != other
    assert _traced(one, *shapes) is _traced(same, *shapes)
    assert _traced(one, *shapes) is not _traced(other, *shapes)
    assert _traced.cache_info().currsize == 2
