"""The data of a GAN workload: real images with their labels, and noise to generate as many images from."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfaccel.data.epochs import Batches, Part
from tfaccel.data.images.image_set import ImageSet
from tfaccel.data.images.moves import ImageMoves


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
        super().__init__(images, self._batches, num_train_examples=images.num_train_images, takes_every=True)
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

    def _batches(self) -> Any:
        from tfaccel.data.images.batches import ImageBatches

        return ImageBatches(self.source, ImageMoves(rotation=0.0, zoom=0.0, shift=0.0))

    def get_batches(self, part: Part) -> Any:
        """The batches of a part of the training data."""
        from tfaccel.data.images.noise_batches import with_noise

        return with_noise(self.made().get_batches(part), self._latent_size, part).map(self._inputs)

    def _inputs(self, batch: Any, noise: Any) -> Any:
        pixels, labels = batch
        images = (pixels - self.source.pixel_mean) / self.source.pixel_scale
        return ({"images": images, "labels": labels, "noise": noise},)
