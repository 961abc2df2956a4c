"""The data of generative models: examples and, beside each, normal noise.

Noise that is part of the data needs no random operation in the step: every replica gets its own rows, and N replicas
see the same noise as one device.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.characters import data_suffix
from tfaccel.data.epochs import Batches, Part, shard_rows
from tfaccel.data.images.files import read_image_set
from tfaccel.data.images.image_data import STILL, ImageBatches
from tfaccel.data.images.image_set import ImageSet, digits
from tfaccel.data.in_memory import TextBatches
from tfaccel.data.tables.files import CSV_SUFFIXES, PARQUET_SUFFIXES
from tfaccel.data.tables.table_data import NumberRows, read_number_rows

if TYPE_CHECKING:
    import tensorflow as tf

_STREAM = 2  # keeps these draws independent of those that shuffle and transform the examples
TRAIN, TEST = "train", "test"
_ROWS_AT_ONCE = 512


def with_noise(batches: tf.data.Dataset, size: int, part: Part) -> Any:
    """A dataset of (batch, noise) with standard normal noise of shape (rows of the batch, size).

    Args:
        batches: a finite dataset; only its last batch may have fewer rows than the others.
        size: noise values for each row.
        part: which batches these are; seed and epoch determine the noise.

    Example:
        >>> import tensorflow as tf
        >>> batches, part = tf.data.Dataset.range(5).batch(2), Part(global_batch_size=2, seed=0, epoch=0)
        >>> [noise.shape[0] for _, noise in with_noise(batches, 3, part)]
        [2, 2, 1]
    """
    import tensorflow as tf

    steps = part.steps(int(batches.cardinality()))
    noise = part.generator(_STREAM).standard_normal((steps.stop, part.global_batch_size, size), np.float32)
    noise = noise[steps, slice(*shard_rows(part.global_batch_size, part.shard))]
    pairs = tf.data.Dataset.zip((batches, tf.data.Dataset.from_tensor_slices(noise)))
    if tf.nest.flatten(batches.element_spec)[0].shape[0] is not None:
        return pairs
    return pairs.map(lambda batch, noise: (batch, noise[: tf.shape(tf.nest.flatten(batch)[0])[0]]))


class GanData(Batches):
    """Batches of a dictionary of "images" (standardized), one-hot "labels", and "noise" (standard normal).

    Args:
        images: the real images, an `ImageSet`.
        latent_size: size of the latent vector.

    Example:
        >>> from tfaccel.data import digit_images
        >>> (batch,) = next(iter(GanData(digit_images(), 4).train_data(64, seed=0, epoch=0)))
        >>> batch["noise"].shape
        TensorShape([64, 4])
    """

    source: ImageSet
    validation_data = None  # type: ignore[assignment]  # There is no validation loss.

    def __init__(self, images: ImageSet, latent_size: int) -> None:
        super().__init__(
            images,
            lambda: ImageBatches(images, STILL),
            num_train_examples=images.num_train_images,
            takes_every=True,
        )
        self._latent_size = latent_size

    def real_images(self, part: str) -> tuple[np.ndarray, np.ndarray]:
        """The standardized images of a part ("train", in the order of the first epoch, or "test"), and their labels.

        Args:
            part: "train" or "test".
        """
        if part == "train":
            (batch,) = next(self.train_data(self.num_train_examples, seed=0, epoch=0).as_numpy_iterator())
            return batch["images"], batch["labels"].argmax(axis=1)
        pixels, labels = next(self.made().test(self.source.num_test_images).as_numpy_iterator())
        return (pixels - self.source.pixel_mean) / self.source.pixel_scale, labels.argmax(axis=1)

    def get_batches(self, part: Part) -> Any:
        """The batches of a part of the training data."""
        return with_noise(self.made().get_batches(part), self._latent_size, part).map(self._inputs)

    def _inputs(self, batch: Any, noise: Any) -> Any:
        pixels, labels = batch
        images = (pixels - self.source.pixel_mean) / self.source.pixel_scale
        return ({"images": images, "labels": labels, "noise": noise},)


@dataclass(frozen=True, kw_only=True)
class Unlabelled:
    """Examples of equal shape, in two parts: "train" and "test".

    Args:
        shape: of one example.
        is_image: whether values are pixel values from 0 to 1; otherwise they are standardized numbers.
        num_examples: part -> number of examples.
        class_names: a name for each class; classes only color plots.
        shuffled: the batches of a `Part` of the training examples, as a `tf.data.Dataset`.
        in_order: `in_order(part, global_batch_size)` returns the examples of a part as a `tf.data.Dataset` of batches;
            the last batch may be smaller.
        labels: `labels(part)` returns the class index of each example, in order.
        names: `names(part)` returns a name for each example, in order.
    """

    shape: tuple[int, ...]
    is_image: bool
    num_examples: Mapping[str, int]
    class_names: tuple[str, ...]
    shuffled: Callable[[Part], Any]
    in_order: Callable[[str, int], Any]
    labels: Callable[[str], np.ndarray]
    names: Callable[[str], list[str]]


def unlabelled_images(images: ImageSet) -> Unlabelled:
    """The images of an image set, with pixel values from 0 to 1.

    Args:
        images: the images. Pixel values that are not uint8 are clipped at two standard deviations from their mean.
    """

    batches = functools.cache(lambda: ImageBatches(images, STILL))

    def values(pixels: Any, labels: Any) -> Any:
        import tensorflow as tf

        del labels
        scaled = (pixels - images.pixel_mean) / (4 * images.pixel_scale) + 0.5
        return tf.clip_by_value(scaled, 0.0, 1.0)

    def names(part: str) -> list[str]:
        split = images.load()[part == TEST]
        files = split.images
        return list(files) if isinstance(files, tuple) else [f"{part} {number}" for number in range(len(split.labels))]

    return Unlabelled(
        shape=(images.image_size, images.image_size, images.num_channels),
        is_image=True,
        num_examples={TRAIN: images.num_train_images, TEST: images.num_test_images},
        class_names=images.class_names,
        shuffled=lambda part: batches().get_batches(part).map(values),
        in_order=lambda part, size: (batches().test if part == TEST else batches().in_order)(size).map(values),
        labels=lambda part: images.load()[part == TEST].labels,
        names=names,
    )


def unlabelled_rows(rows: NumberRows) -> Unlabelled:
    """Rows of numbers, all of one class, named after their numbers below the header, from 1."""
    numbers = {TRAIN: rows.train, TEST: rows.test}

    @functools.cache
    def batches(part: str) -> TextBatches:
        return TextBatches(rows.values[rows.train], rows.values[numbers[part]], noun="rows")

    return Unlabelled(
        shape=(len(rows.names),),
        is_image=False,
        num_examples={part: len(found) for part, found in numbers.items()},
        class_names=("row",),
        shuffled=lambda part: batches(TEST).get_batches(part),
        in_order=lambda part, global_batch_size: batches(part).test(global_batch_size),
        labels=lambda part: np.zeros(len(numbers[part]), np.int64),
        names=lambda part: [f"row {number + 1}" for number in numbers[part]],
    )


class ExampleData(Batches):
    """Batches of {"values", "noise"} and {"reconstruction", "divergence"} for a variational autoencoder.

    The examples are in `source`, an `Unlabelled`: images with values from 0 to 1, or standardized rows of a table. The
    target of the reconstruction is the values, that of the divergence 0.

    Args:
        data_dir: a folder of images, a `.npz` file of images, or a CSV or Parquet file; None for the digits.
        latent_size: size of the latent vector, and of the noise (standard normal) for each example.
        image_size: height and width in pixels to resize images to; None for the default of the data.
        encoding: of a CSV file.
        bad_data: what to do with damaged images or rows; None for `BadData()`, which raises an error.

    Raises:
        DataError: if the data cannot be used; the message names the file, or row and column.

    Example:
        >>> inputs, targets = next(iter(ExampleData(latent_size=3).train_data(64, seed=0, epoch=0)))
        >>> inputs["noise"].shape, targets["reconstruction"].shape
        (TensorShape([64, 3]), TensorShape([64, 8, 8, 1]))
    """

    source: Unlabelled

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        latent_size: int,
        image_size: int | None = None,
        encoding: str = "utf-8",
        bad_data: BadData | None = None,
    ) -> None:
        if data_dir is None:
            examples = unlabelled_images(digits(image_size))
        elif data_suffix(data_dir) in CSV_SUFFIXES + PARQUET_SUFFIXES:
            examples = unlabelled_rows(read_number_rows(data_dir, encoding=encoding, bad_data=bad_data))
        else:
            examples = unlabelled_images(read_image_set(data_dir, image_size=image_size, bad_data=bad_data))
        num_examples = examples.num_examples[TRAIN]
        super().__init__(examples, lambda: self, num_train_examples=num_examples, takes_every=True)
        self._latent_size = latent_size

    def values(self, part: str) -> np.ndarray:
        """All examples of a part, "train" or "test", in order."""
        return np.concatenate([*self.source.in_order(part, _ROWS_AT_ONCE).as_numpy_iterator()])

    def validation_data(self, global_batch_size: int) -> Any:
        """The test examples in order, always with the same noise."""
        part = Part(global_batch_size=global_batch_size, seed=0, epoch=0)
        return self._with_noise(self.source.in_order(TEST, global_batch_size), part)

    def get_batches(self, part: Part) -> Any:
        """The batches of a part of the training data."""
        return self._with_noise(self.source.shuffled(part), part)

    def _with_noise(self, values: Any, part: Part) -> Any:
        return with_noise(values, self._latent_size, part).map(_with_targets)


def _with_targets(values: Any, noise: Any) -> Any:
    return {"values": values, "noise": noise}, {"reconstruction": values, "divergence": noise[:, :1] * 0.0}
