"""Scenes for object detection: real digits of several sizes on clutter, with boxes that are known exactly."""

from __future__ import annotations

import functools

import numpy as np
from PIL import Image, ImageDraw

from tfaccel.data.boxed_images import NO_OBJECT, BoxedImages, BoxedSplit
from tfaccel.data.digits import digits
from tfaccel.data.image_set import ImageSplit

IMAGE_SIZE = 64
MOST_DIGITS = 4
NUM_TRAIN_SCENES, NUM_TEST_SCENES = 1024, 256
_SMALLEST, _LARGEST = 14, 30  # pixels, of a digit's longer side
_LARGEST_OVERLAP = 0.0  # part of the smaller box; digits that hide each other have no clear answer
_NUM_LINES, _NUM_PATCHES = 4, 4
_INK = 96  # a pixel of a digit that is brighter belongs to its box
_TEST_SEED = 20_000


def digit_scenes() -> BoxedImages:
    """Grey scenes of 64x64 pixels with one to four digits each, on lines, pieces of digits and noise.

    Test scenes show digits of the test part only. Training scenes are put together anew in every epoch.

    Example:
        >>> scenes = digit_scenes().test()
        >>> scenes.images.shape, scenes.boxes.shape, scenes.labels.shape
        ((256, 64, 64, 1), (256, 4, 4), (256, 4))
    """
    parts = functools.cache(digits().load)
    return BoxedImages(
        class_names=tuple("0123456789"),
        image_size=IMAGE_SIZE,
        num_channels=1,
        most_objects=MOST_DIGITS,
        num_train_images=NUM_TRAIN_SCENES,
        num_test_images=NUM_TEST_SCENES,
        train=lambda seed, epoch: make_scenes(parts()[0], NUM_TRAIN_SCENES, np.random.default_rng([seed, epoch])),
        test=lambda: make_scenes(parts()[1], NUM_TEST_SCENES, np.random.default_rng(_TEST_SEED)),
    )


def make_scenes(part: ImageSplit, num_scenes: int, generator: np.random.Generator) -> BoxedSplit:
    """Scenes with digits of this part, drawn by the generator alone."""
    images = np.zeros((num_scenes, IMAGE_SIZE, IMAGE_SIZE, 1), np.uint8)
    boxes = np.zeros((num_scenes, MOST_DIGITS, 4), np.float32)
    labels = np.full((num_scenes, MOST_DIGITS), NO_OBJECT, np.int64)
    for scene in range(num_scenes):
        canvas, placed = _clutter(part, generator), 0
        for row in generator.integers(0, len(part.labels), generator.integers(1, MOST_DIGITS + 1)):
            digit = _sized(np.asarray(part.images[row])[..., 0], int(generator.integers(_SMALLEST, _LARGEST + 1)))
            height, width = digit.shape
            left, top = generator.integers(0, IMAGE_SIZE - width + 1), generator.integers(0, IMAGE_SIZE - height + 1)
            box = np.array([left, top, left + width, top + height], np.float32)
            if any(_overlap(box, other) > _LARGEST_OVERLAP for other in boxes[scene, :placed]):
                continue
            region = canvas[top : top + height, left : left + width]
            np.maximum(region, digit, out=region)
            boxes[scene, placed], labels[scene, placed] = box, part.labels[row]
            placed += 1
        images[scene, ..., 0] = canvas
    return BoxedSplit(images, boxes, labels)


def _sized(pixels: np.ndarray, longer_side: int) -> np.ndarray:
    """A digit, cut to its ink, with a longer side of so many pixels."""
    rows, columns = np.flatnonzero((pixels > _INK).any(1)), np.flatnonzero((pixels > _INK).any(0))
    cut = pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scale = longer_side / max(cut.shape)
    size = (max(1, round(cut.shape[1] * scale)), max(1, round(cut.shape[0] * scale)))
    return np.asarray(Image.fromarray(cut).resize(size, Image.Resampling.BILINEAR))


def _clutter(part: ImageSplit, generator: np.random.Generator) -> np.ndarray:
    """Faint noise, lines, and patches cut out of digits, too small to be read."""
    noise = generator.integers(0, 40, (IMAGE_SIZE, IMAGE_SIZE)).astype(np.uint8)
    picture = Image.fromarray(noise)
    draw = ImageDraw.Draw(picture)
    for _ in range(generator.integers(1, _NUM_LINES + 1)):
        draw.line(generator.integers(0, IMAGE_SIZE, 4).tolist(), fill=int(generator.integers(60, 160)))
    canvas = np.array(picture)
    for row in generator.integers(0, len(part.labels), generator.integers(1, _NUM_PATCHES + 1)):
        top, left = generator.integers(0, 5, 2)
        patch = np.kron(np.asarray(part.images[row])[top : top + 3, left : left + 3, 0] // 2, np.ones((2, 2), np.uint8))
        y, x = generator.integers(0, IMAGE_SIZE - 6, 2)
        np.maximum(canvas[y : y + 6, x : x + 6], patch, out=canvas[y : y + 6, x : x + 6])
    return canvas


def _overlap(box: np.ndarray, other: np.ndarray) -> float:
    """The common area, as part of the smaller box."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    smaller = min((b[2] - b[0]) * (b[3] - b[1]) for b in (box, other))
    return float(max(width, 0) * max(height, 0) / smaller)
