"""Random affine transformation of training images: slight rotation, zoom and shift, drawn for each image."""

from dataclasses import dataclass

import numpy as np

from tfaccel.short_repr import short_repr


@short_repr
@dataclass(frozen=True)
class ImageMoves:
    """The range of random affine transformations; each amount is drawn uniformly between its bounds.

    Args:
        rotation: the largest angle, in radians, in either direction.
        zoom: height and width are each scaled by exp(-zoom) to exp(zoom).
        shift: the largest shift as a fraction of the image size, vertically and horizontally.

    Example:
        >>> ImageMoves(shift=0.5).transforms(np.random.default_rng(0), num_images=3, image_size=8).shape
        (3, 8)
    """

    rotation: float = 0.2
    zoom: float = 0.1
    shift: float = 0.1

    @property
    def is_identity(self) -> bool:
        """Whether no image is ever changed.

        Example:
            >>> ImageMoves().is_identity, ImageMoves(rotation=0.0, zoom=0.0, shift=0.0).is_identity
            (False, True)
        """
        return not (self.rotation or self.zoom or self.shift)

    def transforms(self, generator: np.random.Generator, num_images: int, image_size: int) -> np.ndarray:
        r"""One affine transform for each image, in the form that TensorFlow's `ImageProjectiveTransformV3` expects.

        The pixel at $(x, y)$ of the transformed image is that of the image at
        $(a_0 x + a_1 y + a_2, \; b_0 x + b_1 y + b_2)$.

        Returns:
            $(a_0, a_1, a_2, b_0, b_1, b_2, 0, 0)$ for each image: float32, of shape (num_images, 8).
        """
        angle, zoom_x, zoom_y, shift_x, shift_y = generator.uniform(-1.0, 1.0, (5, num_images))
        angle, scale_x, scale_y = self.rotation * angle, np.exp(self.zoom * zoom_x), np.exp(self.zoom * zoom_y)
        a0, a1 = scale_x * np.cos(angle), -scale_x * np.sin(angle)
        b0, b1 = scale_y * np.sin(angle), scale_y * np.cos(angle)
        middle = (image_size - 1) / 2  # rotation and zoom are about the center
        a2 = middle - (a0 + a1) * middle + self.shift * shift_x * image_size
        b2 = middle - (b0 + b1) * middle + self.shift * shift_y * image_size
        zero = np.zeros(num_images)
        return np.stack([a0, a1, a2, b0, b1, b2, zero, zero], axis=1).astype(np.float32)
