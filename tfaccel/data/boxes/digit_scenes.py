"""Scenes for object detection: real digits of several sizes on clutter, with exact boxes."""

from __future__ import annotations

import functools

import numpy as np

from tfaccel.data.boxes.box_data import NO_OBJECT, BoxedImages, BoxedSplit
from tfaccel.data.class_labels import split_rows
from tfaccel.data.images.digits import digits
from tfaccel.data.images.image_set import ImageSplit

IMAGE_SIZE = 64
MAX_DIGITS = 4
NUM_TRAIN_SCENES, NUM_TEST_SCENES = 1024, 256
_MIN_SIZE, _MAX_SIZE = 14, 30  # pixels, of a digit's longer side
_NUM_LINES, _NUM_PATCHES = 4, 4
_INK = 96  # brighter pixels of a digit belong to its box
TEST_SEEDS = {"test": 20_000, "validation": 30_000}  # of the test scenes, by the digits that they show


def digit_scenes(test_part: str = "test") -> BoxedImages:
    """Grayscale scenes of 64x64 pixels with one to four digits each, on lines, fragments of digits and noise.

    Test scenes show only digits of the test part. Training scenes are generated anew in every epoch.

    Args:
        test_part: "test", or "validation" to hold out a stratified fifth of the training digits and test on scenes
            of those, to tune hyperparameters.

    Example:
        >>> scenes = digit_scenes().test()
        >>> scenes.images.shape, scenes.boxes.shape, scenes.labels.shape
        ((256, 64, 64, 1), (256, 4, 4), (256, 4))
    """
    parts = functools.cache(lambda: _parts(test_part))
    return BoxedImages(
        class_names=tuple("0123456789"),
        image_size=IMAGE_SIZE,
        num_channels=1,
        most_objects=MAX_DIGITS,
        num_train_images=NUM_TRAIN_SCENES,
        num_test_images=NUM_TEST_SCENES,
        train=lambda seed, epoch: make_scenes(parts()[0], NUM_TRAIN_SCENES, np.random.default_rng([seed, epoch])),
        test=lambda: make_scenes(parts()[1], NUM_TEST_SCENES, np.random.default_rng(TEST_SEEDS[test_part])),
    )


def _parts(test_part: str) -> tuple[ImageSplit, ImageSplit]:
    """The training and the test digits."""
    train, test = digits().load()
    if test_part == "test":
        return train, test
    images = np.asarray(train.images)
    rows, kept = split_rows(train.labels)
    return ImageSplit(images[rows], train.labels[rows]), ImageSplit(images[kept], train.labels[kept])


def make_scenes(part: ImageSplit, num_scenes: int, generator: np.random.Generator) -> BoxedSplit:
    """Random scenes with digits of this part; all scenes at once, which takes 0.1 ms each.

    Digits are placed one after another; one that would overlap another is dropped.
    """
    canvas = np.zeros((num_scenes, IMAGE_SIZE + _MAX_SIZE, IMAGE_SIZE + _MAX_SIZE), np.uint8)
    _draw_clutter(canvas, part, generator)
    shape = num_scenes, MAX_DIGITS
    boxes, is_placed = np.zeros((*shape, 4), np.float32), np.zeros(shape, bool)
    rows = generator.integers(0, len(part.labels), shape)
    longer_sides = generator.integers(_MIN_SIZE, _MAX_SIZE + 1, shape)
    corners = generator.random((*shape, 2))
    num_tried = generator.integers(1, MAX_DIGITS + 1, num_scenes)
    ink = _cut_to_ink(np.asarray(part.images)[..., 0])
    for place in range(MAX_DIGITS):
        cut, sizes = ink[0][rows[:, place]], ink[1][rows[:, place]]
        scaled = np.round(sizes * (longer_sides[:, place] / sizes.max(axis=1))[:, None])
        sides = np.maximum(1, scaled).astype(int)  # height and width of each digit
        starts = (corners[:, place] * (IMAGE_SIZE - sides + 1)).astype(int)  # top and left
        boxes[:, place] = np.concatenate([starts, starts + sides], axis=1)[:, [1, 0, 3, 2]]
        hides = (_overlaps(boxes[:, place], boxes[:, :place]) & is_placed[:, :place]).any(axis=1)
        is_placed[:, place] = shown = (place < num_tried) & ~hides
        _draw(canvas, np.flatnonzero(shown), starts[shown], _enlarged(cut[shown], sizes[shown], sides[shown]))
    order = np.argsort(~is_placed, axis=1, kind="stable")  # placed digits come first
    is_placed = np.take_along_axis(is_placed, order, axis=1)
    labels = np.take_along_axis(part.labels[rows], order, axis=1)
    boxes = np.where(is_placed[..., None], np.take_along_axis(boxes, order[..., None], axis=1), 0)
    images = np.ascontiguousarray(canvas[:, :IMAGE_SIZE, :IMAGE_SIZE, None])
    return BoxedSplit(images, boxes, np.where(is_placed, labels, NO_OBJECT).astype(np.int64))


def _cut_to_ink(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Digits shifted to the top left until their ink touches the edges, and heights and widths of the ink."""
    is_ink: np.ndarray = pixels > _INK
    lines: list[np.ndarray] = [np.any(is_ink, axis=2), np.any(is_ink, axis=1)]  # down and across
    first = np.stack([line.argmax(axis=1) for line in lines], axis=1)
    last = np.stack([line.shape[1] - line[:, ::-1].argmax(axis=1) for line in lines], axis=1)
    sizes, places = last - first, np.arange(pixels.shape[1])
    rows, columns = (np.minimum(first[:, axis, None] + places, len(places) - 1) for axis in (0, 1))
    moved = pixels[np.arange(len(pixels))[:, None, None], rows[:, :, None], columns[:, None, :]]
    is_inside = (places < sizes[:, :1])[:, :, None] & (places < sizes[:, 1:])[:, None, :]
    return np.where(is_inside, moved, 0).astype(np.float32), sizes


def _enlarged(digits: np.ndarray, sizes: np.ndarray, sides: np.ndarray) -> np.ndarray:
    """Digits enlarged to these sides by bilinear interpolation, padded with zeros to _MAX_SIZE pixels."""
    down, across = (_interpolation(sizes[:, axis], sides[:, axis], digits.shape[1]) for axis in (0, 1))
    return np.round(down @ digits @ across.transpose(0, 2, 1)).astype(np.uint8)


def _interpolation(sizes: np.ndarray, sides: np.ndarray, most: int) -> np.ndarray:
    """Matrices of shape (_MAX_SIZE, most) that interpolate vectors of length `sizes` to length `sides`."""
    size, side = sizes[:, None], sides[:, None]
    pixels = np.arange(_MAX_SIZE)
    positions = np.clip((pixels + 0.5) * size / side - 0.5, 0, size - 1)
    weights = np.maximum(0, 1 - np.abs(positions[..., None] - np.arange(most)))
    return np.asarray(weights * (pixels < side)[..., None], np.float32)


def _draw(canvas: np.ndarray, scenes: np.ndarray, starts: np.ndarray, pixels: np.ndarray) -> None:
    """Draws one square of pixels into each of these scenes, wherever it is brighter than the scene."""
    down, across = np.arange(pixels.shape[1]), np.arange(pixels.shape[2])
    where = (
        scenes[:, None, None],
        (starts[:, :1] + down)[:, :, None],
        (starts[:, 1:] + across)[:, None, :],
    )
    canvas[where] = np.maximum(canvas[where], pixels)


def _draw_clutter(canvas: np.ndarray, part: ImageSplit, generator: np.random.Generator) -> None:
    """Draws faint noise, lines, and patches of digits that are too small to be recognized."""
    num_scenes, scenes = len(canvas), np.arange(len(canvas))
    seen = canvas[:, :IMAGE_SIZE, :IMAGE_SIZE]
    seen[:] = generator.integers(0, 40, seen.shape, np.uint8)
    num_lines = generator.integers(1, _NUM_LINES + 1, num_scenes)
    ends = generator.integers(0, IMAGE_SIZE, (2, num_scenes, _NUM_LINES, 2))
    grey = generator.integers(60, 160, (num_scenes, _NUM_LINES), np.uint8)
    along = np.linspace(0, 1, IMAGE_SIZE)[:, None, None, None]
    points = np.round(ends[0] + along * (ends[1] - ends[0])).astype(int)
    num_patches = generator.integers(1, _NUM_PATCHES + 1, num_scenes)
    rows = generator.integers(0, len(part.labels), (num_scenes, _NUM_PATCHES))
    corners = generator.integers(0, 5, (num_scenes, _NUM_PATCHES, 2))
    starts = generator.integers(0, IMAGE_SIZE - 6, (num_scenes, _NUM_PATCHES, 2))
    faint, three = np.asarray(part.images)[..., 0] // 2, np.arange(3)
    for number in range(_NUM_LINES):
        some = np.flatnonzero(number < num_lines)
        seen[some, points[:, some, number, 0], points[:, some, number, 1]] = grey[some, number]
    for number in range(_NUM_PATCHES):
        some = scenes[number < num_patches]
        down, across = (corners[some, number, axis, None] + three for axis in (0, 1))
        patches = faint[rows[some, number, None, None], down[:, :, None], across[:, None, :]]
        _draw(seen, some, starts[some, number], patches.repeat(2, axis=1).repeat(2, axis=2))


def _overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Whether the box of each scene overlaps the other boxes of the scene."""
    ends = np.minimum(box[:, None, 2:], others[..., 2:])
    return np.asarray((ends > np.maximum(box[:, None, :2], others[..., :2])).all(axis=-1))
