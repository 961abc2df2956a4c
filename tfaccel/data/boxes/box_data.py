"""The data of an object detection workload: batches of images and the target maps of a detector."""

from __future__ import annotations

from typing import Any

from tfaccel.data.boxes.boxed_images import BoxedImages, BoxedSplit
from tfaccel.data.epochs import Batches
from tfaccel.data.images.moves import ImageMoves

_MOVES = ImageMoves(rotation=0.0, zoom=0.2, shift=0.1)


class BoxData(Batches):
    """Batches of images (float32, raw pixel values) and target maps; see `tfaccel.data.boxes.batches.target_maps`.

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
        self._moves = _MOVES if augmented else None
        super().__init__(images, self._batches, num_train_examples=images.num_train_images, takes_every=True)

    def test_split(self) -> BoxedSplit:
        """The test images with their boxes, as arrays."""
        split: BoxedSplit = self.made().test_split()
        return split

    def _batches(self) -> Any:
        from tfaccel.data.boxes.batches import BoxBatches

        return BoxBatches(self.source, self._moves)
