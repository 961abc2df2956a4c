"""The data of an object detection workload: `BoxedImages`, and batches of images and a detector's target maps.

`digit_scenes` makes such images: scenes of real digits of several sizes on clutter, with exact boxes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.class_labels import split_rows
from tfaccel.data.epochs import Batches, Epochs, Part, gathered, ordered_map
from tfaccel.data.images.image_data import ImageMoves, moved_images
from tfaccel.data.images.image_set import ImageSplit, digits
from tfaccel.errors import DataError
from tfaccel.short_repr import noun

if TYPE_CHECKING:
    import tensorflow as tf

NO_OBJECT = -1
_MOVES = ImageMoves(rotation=0.0, zoom=0.2, shift=0.1)

STRIDE = 4  # image pixels per cell of the maps
NUM_BOX_CHANNELS = 4  # height, width, and the center's offset in its cell: vertical, horizontal
_SPREAD = 6.0  # a peak's standard deviation is the side of the box divided by this
_MIN_SPREAD = 0.6  # cells
_MIN_VISIBLE = 0.4  # of a box that was moved partly out of the image; with less it is dropped

IMAGE_SIZE = 64
MAX_DIGITS = 4
NUM_TRAIN_SCENES, NUM_TEST_SCENES = 1024, 256
_MIN_SIZE, _MAX_SIZE = 14, 30  # pixels, of a digit's longer side
_NUM_LINES, _NUM_PATCHES = 4, 4
_INK = 96  # brighter pixels of a digit belong to its box
TEST_SEEDS = {"test": 20_000, "validation": 30_000}  # of the test scenes, by the digits that they show


@noun(kw_only=False)
class BoxedSplit:
    """Images of equal size and their boxes.

    Args:
        images: uint8, of shape (num_images, size, size, channels).
        boxes: float32, of shape (num_images, most_objects, 4): left, top, right and bottom edge, in pixels.
        labels: int64, of shape (num_images, most_objects): the class index of each box; NO_OBJECT fills the
            unused places.
    """

    images: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Detections:
    """The detections in one image, highest score first.

    Args:
        boxes: left, top, right and bottom edge in pixels; of shape (num_found, 4).
        labels: class indices.
        scores: confidence scores, from 0 to 1.
    """

    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray


@noun
class BoxedImages:
    """Images with boxes in a training and a test part.

    Args:
        class_names: a name for each class.
        image_size: height and width in pixels.
        num_channels: 1 (grayscale) or 3 (RGB).
        most_objects: maximum number of boxes in an image.
        num_train_images, num_test_images: images in each part.
        train: `train(seed, epoch)` returns one epoch's images, the same for the same seed and epoch.
        test: `test()` returns the test images, the same at every call.
    """

    class_names: tuple[str, ...]
    image_size: int
    num_channels: int
    most_objects: int
    num_train_images: int
    num_test_images: int
    train: Callable[[int, int], BoxedSplit]
    test: Callable[[], BoxedSplit]


def target_maps(boxes: np.ndarray, labels: np.ndarray, *, image_size: int, num_classes: int) -> np.ndarray:
    """The target maps of images: a heatmap of each class, then size and offset of the boxes, then a mask.

    Each object's heatmap is 1 in the cell of its center and decays around it. Sizes (in cells) and offsets are set only
    in the cell of the center, where the mask is 1.

    Args:
        boxes: of shape (num_images, most_objects, 4), in pixels.
        labels: of shape (num_images, most_objects).
        image_size: height and width of the images in pixels.
        num_classes: number of classes.

    Returns:
        float32, of shape (num_images, cells, cells, num_classes + 5), where cells = image_size / STRIDE.

    Example:
        >>> maps = target_maps(np.array([[[8.0, 8, 24, 16]]]), np.array([[1]]), image_size=32, num_classes=2)
        >>> maps.shape, maps[0, 3, 4].tolist()
        ((1, 8, 8, 7), [0.0, 1.0, 2.0, 4.0, 0.0, 0.0, 1.0])
    """
    num_cells = image_size // STRIDE
    maps = np.zeros((len(boxes), num_cells, num_cells, num_classes + NUM_BOX_CHANNELS + 1), np.float32)
    cells = np.arange(num_cells)
    for place in range(labels.shape[1]):  # the first objects of all images, then the second ones ...
        images = np.flatnonzero(labels[:, place] != NO_OBJECT)
        corners = boxes[images, place].reshape(-1, 2, 2) / STRIDE  # left and top, right and bottom
        centres, sides = corners.mean(axis=1)[:, ::-1], (corners[:, 1] - corners[:, 0])[:, ::-1]  # down, across
        of_cells = np.minimum(centres.astype(int), num_cells - 1)
        distances = (cells - of_cells[..., None]) / np.maximum(sides / _SPREAD, _MIN_SPREAD)[..., None]
        down, across = np.exp(-0.5 * distances**2).transpose(1, 0, 2)
        of_class = images, slice(None), slice(None), labels[images, place]
        maps[of_class] = np.maximum(maps[of_class], down[:, :, None] * across[:, None, :])
        at_centre = np.concatenate([sides, centres - of_cells, np.ones((len(images), 1))], axis=1)
        maps[images, of_cells[:, 0], of_cells[:, 1], num_classes:] = at_centre
    return maps


class BoxBatches(Epochs):
    """Batches of an image set with boxes: images (float32, raw pixel values) and target maps.

    Args:
        images: the images and boxes.
        moves: the range of random zoom and shift of training images and their boxes. Rotation is not supported.

    Raises:
        DataError: if the image size is not a multiple of 16, or `moves` has a rotation.
    """

    def __init__(self, images: BoxedImages, moves: ImageMoves | None) -> None:
        if images.image_size % (4 * STRIDE) or (moves is not None and moves.rotation):
            raise DataError(
                f"Images for detection must have a size that is a multiple of {4 * STRIDE} pixels, and are not turned. "
                f"Received: image_size={images.image_size}, moves={moves}."
            )
        self._images = images
        self._moves = moves
        self.test_split = functools.cache(images.test)

    def get_batches(self, part: Part) -> tf.data.Dataset:
        """The batches of a part of an epoch; seed and epoch determine order, scenes and moves."""
        import tensorflow as tf

        num_images, size = self._images.num_train_images, self._images.image_size
        positions = part.positions(num_images, "images")
        generator = part.generator(1)
        split, places = self._images.train(part.seed, part.epoch), positions.ravel()
        rows = generator.permutation(num_images)[places]
        boxes, labels = split.boxes[rows], split.labels[rows]
        transforms = np.tile(np.array([1, 0, 0, 0, 1, 0, 0, 0], np.float32), (len(rows), 1))
        if self._moves is not None:
            num_used = num_images // part.global_batch_size * part.global_batch_size
            transforms = self._moves.transforms(generator, num_used, size)[places]
            boxes, labels = moved_boxes(boxes, labels, transforms, size)
        read = gathered(split.images)
        data = tf.data.Dataset.from_tensor_slices((rows, transforms, self._maps(boxes, labels)))

        def batch(rows: Any, transforms: Any, maps: Any) -> Any:
            images = tf.cast(read(rows), tf.float32)
            if self._moves is not None:
                images = moved_images(images, transforms, size, fill_mode="CONSTANT")
            return tf.ensure_shape(images, [*rows.shape, size, size, self._images.num_channels]), maps

        return ordered_map(data.batch(positions.shape[1], drop_remainder=True), batch)

    def test(self, global_batch_size: int) -> tf.data.Dataset:
        """The test images in order; the last batch may be smaller."""
        import tensorflow as tf

        split: BoxedSplit = self.test_split()
        data = tf.data.Dataset.from_tensor_slices((split.images, self._maps(split.boxes, split.labels)))
        return data.batch(global_batch_size).map(lambda images, maps: (tf.cast(images, tf.float32), maps))

    def _maps(self, boxes: np.ndarray, labels: np.ndarray) -> np.ndarray:
        num_classes = len(self._images.class_names)
        return target_maps(boxes, labels, image_size=self._images.image_size, num_classes=num_classes)


def moved_boxes(
    boxes: np.ndarray, labels: np.ndarray, transforms: np.ndarray, image_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Boxes and labels of zoomed and shifted images; boxes are clipped at the edges, or dropped.

    Args:
        boxes, labels: as in `BoxedSplit`.
        transforms: as `ImageMoves.transforms` returns them, without rotation.
        image_size: height and width in pixels.

    Example:
        >>> half_out = np.array([[1, 0, 10, 0, 1, 0, 0, 0]])
        >>> moved_boxes(np.array([[[0.0, 0, 20, 20]]]), np.array([[3]]), half_out, 32)[0].tolist()
        [[[0.0, 0.0, 10.0, 20.0]]]
    """
    # The moved image at x shows the old one at a x + c. Pixel i covers i to i + 1, and transforms refer to its center.
    scale = transforms[:, None, [0, 4]]
    moved_by = transforms[:, None, [2, 5]] + (scale - 1) * -0.5
    corners = [(boxes[..., part] - moved_by) / scale for part in (slice(0, 2), slice(2, 4))]
    whole = np.concatenate(corners, axis=-1)
    cut = np.clip(whole, 0, image_size)
    area, left_over = (np.prod(b[..., 2:] - b[..., :2], axis=-1) for b in (whole, cut))
    visible = left_over > _MIN_VISIBLE * np.maximum(area, 1e-6)
    return cut.astype(np.float32), np.where(visible, labels, NO_OBJECT)


class BoxData(Batches):
    """Batches of images (float32, raw pixel values) and target maps; see `tfaccel.data.box_data.target_maps`.

    Args:
        images: a `BoxedImages`.
        augmented: whether to zoom and shift training images at random.

    Example:
        >>> from tfaccel.data import scenes_of_digits
        >>> images, maps = next(iter(BoxData(scenes_of_digits()).train_data(32, seed=0, epoch=0)))
        >>> images.shape, maps.shape
        (TensorShape([32, 64, 64, 1]), TensorShape([32, 16, 16, 15]))
    """

    source: BoxedImages

    def __init__(self, images: BoxedImages, *, augmented: bool = False) -> None:
        super().__init__(
            images,
            lambda: BoxBatches(images, _MOVES if augmented else None),
            num_train_examples=images.num_train_images,
            takes_every=True,
        )

    def test_split(self) -> BoxedSplit:
        """The test images with their boxes, as arrays."""
        split: BoxedSplit = self.made().test_split()
        return split


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
