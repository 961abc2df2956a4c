"""The parts of the autoencoder's two networks, for images and for rows of numbers, and what they cost."""

from __future__ import annotations

from typing import Any

from tfaccel.models.gan_costs import num_halvings
from tfaccel.planning.layer_costs import LayerCost, layer_cost

WIDTH = 32


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


def autoencoder_cost(shape: tuple[int, ...], latent_size: int, *, width: int = WIDTH) -> LayerCost:
    """Multiplications of one example's forward pass, and the number of trainable parameters.

    Example:
        >>> autoencoder_cost((8, 8, 1), 8).num_parameters
        583889
    """
    if len(shape) == 1:
        columns, units = shape[0], row_width(shape[0], width)
        pairs = (
            (columns, units),
            (units, units),
            (units, 2 * latent_size),
            (latent_size, units),
            (units, units),
            (units, 2 * columns),
        )
        return sum((layer_cost(*pair) for pair in pairs), LayerCost())
    size, _, channels = shape
    halvings = num_halvings(size)
    costs, inputs = layer_cost(9 * channels, width, positions=size**2), width
    for _ in range(halvings):
        size = -(-size // 2)
        costs, inputs = costs + layer_cost(9 * inputs, 2 * width, positions=size**2), 2 * width
    costs += layer_cost(size**2 * inputs, 8 * width) + layer_cost(8 * width, 2 * latent_size)
    costs += layer_cost(latent_size, 8 * width) + layer_cost(8 * width, size**2 * inputs)
    for _ in range(halvings):
        costs, inputs, size = costs + layer_cost(16 * inputs, width, positions=size**2), width, 2 * size
    return costs + layer_cost(9 * inputs, channels, positions=size**2)
