"""The data of an autoencoder's workload: each example is paired with noise and is its own target."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.epochs import Batches, Part
from tfaccel.data.images.digits import digits
from tfaccel.data.images.files import read_image_set
from tfaccel.data.images.unlabelled import TEST, TRAIN, Unlabelled, UnlabelledImages, UnlabelledRows
from tfaccel.data.tables.files import CSV_SUFFIXES, PARQUET_SUFFIXES
from tfaccel.data.tables.number_rows import read_number_rows

_ROWS_AT_ONCE = 512


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
        examples: Unlabelled
        if data_dir is None:
            examples = UnlabelledImages(digits(image_size))
        elif Path(data_dir).suffix.lower() in CSV_SUFFIXES + PARQUET_SUFFIXES:
            examples = UnlabelledRows(read_number_rows(data_dir, encoding=encoding, bad_data=bad_data))
        else:
            examples = UnlabelledImages(read_image_set(data_dir, image_size=image_size, bad_data=bad_data))
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
        from tfaccel.data.images.noise_batches import with_noise

        return with_noise(values, self._latent_size, part).map(_with_targets)


def _with_targets(values: Any, noise: Any) -> Any:
    return {"values": values, "noise": noise}, {"reconstruction": values, "divergence": noise[:, :1] * 0.0}
