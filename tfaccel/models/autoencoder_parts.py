"""The parts of the autoencoder's two networks, for images and for rows of numbers."""

from __future__ import annotations

import math
from typing import Any

WIDTH = 32


def num_halvings(image_size: int) -> int:
    """How often images are halved: down to 2, 3 or 4 pixels.

    Example:
        >>> [num_halvings(size) for size in (8, 28, 64)]
        [1, 3, 4]
    """
    return max(1, math.ceil(math.log2(image_size / 4)))


def image_parts(shape: tuple[int, ...], width: int) -> tuple[list[Any], list[Any]]:
    """Convolutions that halve images down to 2, 3 or 4 pixels, `width` filters in the first one, and the way back."""
    from keras import layers

    halvings = num_halvings(shape[0])
    size = -(-shape[0] // 2**halvings)
    encoder: list[Any] = [layers.Conv2D(width, 3, padding="same", activation="gelu")]
    decoder: list[Any] = [layers.Dense(units, activation="gelu") for units in (8 * width, size * size * 2 * width)]
    decoder.append(layers.Reshape((size, size, 2 * width)))
    for _ in range(halvings):
        encoder.append(layers.Conv2D(2 * width, 3, 2, padding="same", activation="gelu"))
        decoder.append(layers.Conv2DTranspose(width, 4, 2, padding="same", activation="gelu"))
    return [*encoder, layers.Flatten(), layers.Dense(8 * width, activation="gelu")], decoder


def row_parts(num_columns: int, width: int) -> tuple[list[Any], list[Any]]:
    """Two hidden layers each way."""
    from keras import layers

    units = row_width(num_columns, width)
    encoder, decoder = ([layers.Dense(units, activation="gelu") for _ in range(2)] for _ in range(2))
    return encoder, decoder


def row_width(num_columns: int, width: int) -> int:
    """The width of the hidden layers for rows: 8 for each column, 32 to 256 in all; more or less, as `width` says.

    Example:
        >>> row_width(10, 32), row_width(10, 16)
        (80, 40)
    """
    return max(1, min(256, max(32, 8 * num_columns)) * width // WIDTH)
