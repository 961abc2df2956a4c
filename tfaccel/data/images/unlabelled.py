"""Examples for unsupervised models: images or rows of numbers, under one interface."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np

from tfaccel.data.epochs import InMemory, Part
from tfaccel.data.images.image_set import ImageSet
from tfaccel.data.images.moves import ImageMoves
from tfaccel.data.tables.number_rows import NumberRows

TRAIN, TEST = "train", "test"


class Unlabelled(ABC):
    """Examples of equal shape, in a training and a test part.

    Attributes:
        shape: of one example.
        is_image: whether values are pixel values from 0 to 1; otherwise they are standardized numbers.
        num_examples: part -> number of examples.
        class_names: a name for each class; classes only color plots.
    """

    shape: tuple[int, ...]
    is_image: bool
    num_examples: dict[str, int]
    class_names: tuple[str, ...]

    @abstractmethod
    def shuffled(self, part: Part) -> Any:
        """The batches of a part of the training examples, as a `tf.data.Dataset`."""

    @abstractmethod
    def in_order(self, part: str, global_batch_size: int) -> Any:
        """The examples of a part as a `tf.data.Dataset` of batches; the last batch may be smaller."""

    @abstractmethod
    def labels(self, part: str) -> np.ndarray:
        """The class index of each example, in order."""

    @abstractmethod
    def names(self, part: str) -> list[str]:
        """A name for each example in order."""


class UnlabelledImages(Unlabelled):
    """The images of an image set, with pixel values from 0 to 1.

    Args:
        images: the images. Pixel values that are not uint8 are clipped at two standard deviations from their mean.
    """

    is_image = True

    def __init__(self, images: ImageSet) -> None:
        self._images = images
        self.shape = (images.image_size, images.image_size, images.num_channels)
        self.num_examples = {TRAIN: images.num_train_images, TEST: images.num_test_images}
        self.class_names = images.class_names

    def shuffled(self, part: Part) -> Any:
        """Images without augmentation, in an order determined by seed and epoch."""
        return self._batches(TEST).get_batches(part).map(lambda pixels, labels: self._values(pixels))

    def in_order(self, part: str, global_batch_size: int) -> Any:
        """The images of a part."""
        return self._batches(part).test(global_batch_size).map(lambda pixels, labels: self._values(pixels))

    def labels(self, part: str) -> np.ndarray:
        """The labels of the images."""
        return self._images.load()[part == TEST].labels

    def names(self, part: str) -> list[str]:
        """File names, or the part and an index."""
        images = self._images.load()[part == TEST].images
        return list(images) if isinstance(images, tuple) else [f"{part} {number}" for number in range(len(images))]

    @functools.cache  # noqa: B019 (one set in a process)
    def _batches(self, part: str) -> Any:
        from tfaccel.data.images.batches import ImageBatches

        images, still = self._images, ImageMoves(rotation=0.0, zoom=0.0, shift=0.0)
        if part == TRAIN:
            train = images.load()[0]
            images = replace(images, num_test_images=images.num_train_images, load=lambda: (train, train))
        return ImageBatches(images, still)

    def _values(self, pixels: Any) -> Any:
        import tensorflow as tf

        scaled = (pixels - self._images.pixel_mean) / (4 * self._images.pixel_scale) + 0.5
        return tf.clip_by_value(scaled, 0.0, 1.0)


class UnlabelledRows(Unlabelled):
    """Rows of numbers, all of one class."""

    is_image = False
    class_names = ("row",)

    def __init__(self, rows: NumberRows) -> None:
        self._rows = rows
        self.shape = (len(rows.names),)
        self._numbers = {TRAIN: rows.train, TEST: rows.test}
        self.num_examples = {part: len(numbers) for part, numbers in self._numbers.items()}
        self._train = InMemory(
            lambda numbers: rows.values[numbers],
            num_examples=len(rows.train),
            test=rows.values[rows.test],
            order=lambda generator: generator.permutation(rows.train),
            noun="rows",
        )

    def shuffled(self, part: Part) -> Any:
        """Rows in an order determined by seed and epoch."""
        return self._train.get_batches(part)

    def in_order(self, part: str, global_batch_size: int) -> Any:
        """The rows of a part."""
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices(self._rows.values[self._numbers[part]]).batch(global_batch_size)

    def labels(self, part: str) -> np.ndarray:
        """All the same."""
        return np.zeros(self.num_examples[part], np.int64)

    def names(self, part: str) -> list[str]:
        """Row numbers below the header, from 1."""
        return [f"row {number + 1}" for number in self._numbers[part]]
