"""The data of an image workload: augmented training batches, and test batches without augmentation."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from tfaccel.data.cache_choice import CacheOptions, Place
from tfaccel.data.epochs import Batches, Part
from tfaccel.data.images.image_set import ImageSet
from tfaccel.data.images.moves import ImageMoves
from tfaccel.data.raw_input import ImageInput

_FLOAT_BYTES = 4
_STILL = ImageMoves(rotation=0.0, zoom=0.0, shift=0.0)
_OF_IMAGES = ("moves", "none")  # the others augment whole batches and may mix their images


class ImageData(Batches):
    """Batches of images (float32, raw pixel values) and one-hot labels (float32).

    Args:
        images: an `ImageSet`.
        augmentation: random augmentation of training images: slight rotation, zoom and shift ("moves"), nothing
            ("none"), or the moves followed by a batch augmentation: "flip", "crop", "randaugment", "mixup", "cutmix"
            or "cutout"; see `tfaccel.data.images.augmentation`.
        moves: the range of rotation, zoom and shift.
        cache: where decoded images are kept: "memory", "disk", "none", or "auto" for the first with enough space.

    Example:
        >>> from tfaccel.data import digit_images
        >>> data = ImageData(digit_images())
        >>> images, labels = next(iter(data.train_data(64, seed=0, epoch=0)))
        >>> images.shape, labels.shape
        (TensorShape([64, 8, 8, 1]), TensorShape([64, 10]))
    """

    takes_augmented = True

    def __init__(
        self,
        images: ImageSet,
        *,
        augmentation: str = "moves",
        moves: ImageMoves = ImageMoves(),  # noqa: B008 (immutable)
        cache: Place = "auto",
    ) -> None:
        num_images, raw_input = images.num_train_images, ImageInput.of(images)
        super().__init__(images, self._batches, num_train_examples=num_images, takes_every=True, raw_input=raw_input)
        self._moves = _STILL if augmentation == "none" else moves
        self._cache = CacheOptions(place=cache)
        self._kind = augmentation
        self.example_bytes = _FLOAT_BYTES * images.image_size**2 * images.num_channels
        self.augment = None if augmentation == "none" else self._augment
        self.augment_mixes_rows = augmentation not in _OF_IMAGES

    def _batches(self) -> Any:
        from tfaccel.data.images.batches import ImageBatches

        return ImageBatches(self.source, self._moves, cache=self._cache)

    @functools.cached_property
    def _layers(self) -> Any:
        from tfaccel.data.images.augmentation import ImageAugmentation

        return ImageAugmentation(self._kind, self.source)

    def get_batches(self, part: Part) -> Any:
        """The batches of a part of the training data."""
        if not self.augment_mixes_rows:
            return self.made().get_batches(part)
        # The images of a batch are mixed with each other, so the whole batch is needed before it is sharded.
        whole = replace(part, shard=None)
        batches = self._layers.apply(self.made().get_batches(whole), whole)
        return part.own_rows(batches) if part.augmented else batches

    def _augment(self, batch: tuple[Any, Any]) -> Any:
        moved = self.made().augment(batch[0] if self.augment_mixes_rows else batch)
        return self._layers.augment(*moved, batch[1]) if self.augment_mixes_rows else moved
