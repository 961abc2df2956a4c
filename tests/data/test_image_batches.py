"""Batches of images: the same for the same seed and epoch, moved as planned, decoded and sized."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from tfaccel.data.cache import CacheOptions
from tfaccel.data.images.files import read_image_set
from tfaccel.data.images.image_data import ImageMoves
from tfaccel.data.images.image_set import ImageSet, ImageSplit, digits
from tfaccel.errors import DataError

STILL = ImageMoves(rotation=0.0, zoom=0.0, shift=0.0)


def numbered(num_images=10, *, size=8, dtype=np.uint8):
    """Images that each hold their own number in every pixel, in two classes."""
    numbers = np.arange(num_images)
    pixels = np.broadcast_to(numbers[:, None, None, None], (num_images, size, size, 1)).astype(dtype)
    part = ImageSplit(pixels, numbers % 2)
    return ImageSet(
        class_names=("even", "odd"),
        image_size=8,
        num_channels=1,
        num_train_images=num_images,
        num_test_images=num_images,
        load=lambda: (part, part),
    )


@pytest.fixture
def batches(logical_devices):
    """A function from an image set to its batches."""
    from tfaccel.data.images.image_data import ImageBatches

    return lambda images, moves=STILL, **options: ImageBatches(images, moves, **options)


def read(dataset):
    images, labels = zip(*dataset.as_numpy_iterator(), strict=True)
    return np.concatenate(images), np.concatenate(labels)


def order_of(dataset):
    return read(dataset)[0][:, 0, 0, 0].astype(int).tolist()


def test_an_epoch_is_full_batches_of_different_images(batches):
    data = batches(numbered()).train(4, seed=0, epoch=0)
    assert data.element_spec[0].shape == (4, 8, 8, 1)
    assert data.element_spec[1].shape == (4, 2)
    assert data.cardinality() == 2
    images, labels = read(data)
    order = images[:, 0, 0, 0].astype(int)
    assert len(set(order)) == 8
    assert (images.dtype, labels.dtype) == (np.float32, np.float32)
    assert np.array_equal(images, np.broadcast_to(order[:, None, None, None], images.shape))
    assert np.array_equal(labels, np.eye(2)[order % 2])


def test_images_left_over_differ_between_epochs(batches):
    ours = batches(numbered())
    orders = [order_of(ours.train(4, seed=0, epoch=epoch)) for epoch in range(6)]
    assert len({tuple(order) for order in orders}) == 6
    assert set().union(*orders) == set(range(10))


def test_seed_and_epoch_decide_an_epoch_to_the_last_bit(batches):
    first, second = (batches(digits(), ImageMoves()) for _ in range(2))
    expected = read(first.train(64, seed=3, epoch=2))
    for received in (read(second.train(64, seed=3, epoch=2)), read(first.train(64, seed=3, epoch=2))):
        assert all(np.array_equal(a, b) for a, b in zip(expected, received, strict=True))
    for other in ({"seed": 4, "epoch": 2}, {"seed": 3, "epoch": 1}):
        assert not np.array_equal(expected[0], read(first.train(64, **other))[0])


def test_batch_size_does_not_change_what_an_epoch_holds(batches):
    ours = batches(digits(), ImageMoves())
    large, small = (read(ours.train(size, seed=0, epoch=0)) for size in (64, 16))
    assert np.array_equal(large[0], small[0][: len(large[0])])
    assert np.array_equal(large[1], small[1][: len(large[1])])


def test_an_epoch_can_be_entered_in_its_middle(batches):
    ours = batches(digits(), ImageMoves())
    whole = read(ours.train(64, seed=0, epoch=0))
    rest = read(ours.train(64, seed=0, epoch=0, start_step=20))
    assert np.array_equal(whole[0][20 * 64 :], rest[0])
    assert np.array_equal(whole[1][20 * 64 :], rest[1])


def test_decoded_files_are_used_again_until_they_change(batches, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("L", (8, 8), 10 * number).save(tmp_path / name / f"{number}.png")
    cache = CacheOptions(place="disk", folder=tmp_path / ".cache")

    def highest():
        images = read(batches(read_image_set(tmp_path), cache=cache).train(4, seed=0, epoch=0))[0]
        return images.max(), sorted((tmp_path / ".cache").iterdir())

    before, folders = highest()
    assert highest() == (before, folders)
    for name in ("a", "b"):
        for number in range(3):
            Image.new("L", (8, 8), 200).save(tmp_path / name / f"{number}.png")
    after, more_folders = highest()
    assert (after, len(folders), len(more_folders)) == (200, 1, 2)


def test_moved_images_are_those_of_the_transforms(batches):
    pixels = np.zeros((4, 8, 8, 1), np.uint8)
    pixels[:, 2, 5] = 200
    part = ImageSplit(pixels, np.array([0, 1, 0, 1]))
    images = dataclasses.replace(numbered(4), load=lambda: (part, part))
    moves = dataclasses.replace(STILL, shift=1 / 8)
    moved, _ = read(batches(images, moves).train(4, seed=0, epoch=0))
    generator = np.random.default_rng([0, 0])
    generator.permutation(4)
    shifts = moves.transforms(generator, 4, 8)[:, [5, 2]]  # down, sideways: less than a pixel
    for image, (down, sideways) in zip(moved[..., 0], shifts, strict=True):
        centre = np.array(np.meshgrid(range(8), range(8), indexing="ij")).reshape(2, -1) @ image.ravel() / 200
        assert image.sum() == pytest.approx(200, rel=1e-4)
        assert centre == pytest.approx([2 - down, 5 - sideways], abs=1e-3)


def test_test_images_come_in_order_with_a_short_last_batch(batches):
    data = batches(numbered()).test(4)
    assert [len(labels) for _, labels in data.as_numpy_iterator()] == [4, 4, 2]
    assert order_of(data) == list(range(10))
    assert read(data)[1].dtype == np.float32


def test_batch_larger_than_the_data_is_refused(batches):
    with pytest.raises(DataError, match=r"A batch takes 11 images, but there are 10 to train on\. Use .* at most 10\."):
        batches(numbered()).train(11, seed=0, epoch=0)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_arrays_are_brought_to_size(batches, dtype):
    images, _ = read(batches(numbered(size=20, dtype=dtype)).test(10))
    assert images.shape == (10, 8, 8, 1)
    assert np.allclose(images, np.broadcast_to(np.arange(10)[:, None, None, None], images.shape), atol=1e-4)


@pytest.mark.parametrize("place", ["memory", "disk", "none"])
def test_files_are_decoded(batches, tmp_path, place):
    colors = {"red": (250, 10, 20), "grey": 90, "cyan": (0, 200, 220, 255)}
    for name, color in colors.items():
        (tmp_path / name).mkdir()
        for number, suffix in enumerate(("png", "jpg", "JPEG", "png")):
            mode = "L" if name == "grey" else "RGBA" if name == "cyan" and suffix == "png" else "RGB"
            fill = color if mode != "RGB" else color[:3]
            Image.new(mode, (15 + number, 12), fill).save(tmp_path / name / f"{number}.{suffix}")
    images = read_image_set(tmp_path, image_size=10)
    cache = CacheOptions(place=place, folder=tmp_path / ".cache")
    pixels, labels = read(batches(images, cache=cache).train(3, seed=0, epoch=0))
    assert pixels.shape == (9, 10, 10, 3)
    expected = {"cyan": (0, 200, 220), "grey": (90, 90, 90), "red": (250, 10, 20)}
    for image, label in zip(pixels, labels.argmax(axis=1), strict=True):
        assert np.abs(image - expected[images.class_names[label]]).max() < 4
    assert len(read(batches(images).test(2))[0]) == 3
