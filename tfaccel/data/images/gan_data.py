"""The data of a GAN workload: real images with their labels, and noise to generate as many images from."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfaccel.data.batches import Batches
from tfaccel.data.epoch_positions import Every, Shard, get_steps
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
        super().__init__(images, self._batches, num_train_examples=images.num_train_images)
        self._latent_size = latent_size
        self.train_data = self._train_data

    def real_images(self, part: str) -> tuple[np.ndarray, np.ndarray]:
        """The standardized images of a part ("train", in the order of the first epoch, or "test"), and their labels.

        Args:
            part: "train" or "test".
        """
        if part == "train":
            (batch,) = next(self._train_data(self.num_train_examples, seed=0, epoch=0).as_numpy_iterator())
            return batch["images"], batch["labels"].argmax(axis=1)
        pixels, labels = next(self.made().test(self.source.num_test_images).as_numpy_iterator())
        return (pixels - self.source.pixel_mean) / self.source.pixel_scale, labels.argmax(axis=1)

    def _batches(self) -> Any:
        from tfaccel.data.images.batches import ImageBatches

        return ImageBatches(self.source, ImageMoves(rotation=0.0, zoom=0.0, shift=0.0))

    def _train_data(
        self,
        global_batch_size: int,
        *,
        seed: int,
        epoch: int,
        start_step: int = 0,
        shard: Shard | None = None,
        every: Every | None = None,
    ) -> Any:
        from tfaccel.data.images.noise_batches import with_noise

        part: dict[str, Any] = {"seed": seed, "epoch": epoch, "start_step": start_step, "shard": shard}
        part["every"] = every
        real = self.made().train(global_batch_size, **part)
        steps = get_steps(int(real.cardinality()), start_step, every)
        which: dict[str, Any] = {"seed": seed, "epoch": epoch, "steps": steps, "shard": shard}
        return with_noise(real, self._latent_size, global_batch_size=global_batch_size, **which).map(self._inputs)

    def _inputs(self, batch: Any, noise: Any) -> Any:
        pixels, labels = batch
        images = (pixels - self.source.pixel_mean) / self.source.pixel_scale
        return ({"images": images, "labels": labels, "noise": noise},)
