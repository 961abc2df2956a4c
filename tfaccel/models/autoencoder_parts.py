"""The parts of the autoencoder's two networks, for images and for rows of numbers, and what they cost."""

from __future__ import annotations

from typing import Any

from tfaccel.models.gan_costs import num_halvings
from tfaccel.planning.layer_costs import LayerCost, layer_cost


def image_parts(shape: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """Convolutions that halve images down to 2, 3 or 4 pixels, and the way back."""
    from keras import layers

    halvings = num_halvings(shape[0])
    size = -(-shape[0] // 2**halvings)
    encoder: list[Any] = [layers.Conv2D(32, 3, padding="same", activation="gelu")]
    decoder: list[Any] = [layers.Dense(256, activation="gelu"), layers.Dense(size * size * 64, activation="gelu")]
    decoder.append(layers.Reshape((size, size, 64)))
    for _ in range(halvings):
        encoder.append(layers.Conv2D(64, 3, 2, padding="same", activation="gelu"))
        decoder.append(layers.Conv2DTranspose(32, 4, 2, padding="same", activation="gelu"))
    return [*encoder, layers.Flatten(), layers.Dense(256, activation="gelu")], decoder


def row_parts(num_columns: int) -> tuple[list[Any], list[Any]]:
    """Two hidden layers each way."""
    from keras import layers

    width = row_width(num_columns)
    encoder, decoder = ([layers.Dense(width, activation="gelu") for _ in range(2)] for _ in range(2))
    return encoder, decoder


def row_width(num_columns: int) -> int:
    """The width of the hidden layers for rows."""
    return min(256, max(32, 8 * num_columns))


def autoencoder_cost(shape: tuple[int, ...], latent_size: int) -> LayerCost:
    """Multiplications of one example's forward pass, and the number of trainable parameters.

    Example:
        >>> autoencoder_cost((8, 8, 1), 8).num_parameters
        583889
    """
    if len(shape) == 1:
        columns, width = shape[0], row_width(shape[0])
        pairs = ((columns, width), (width, width), (width, 2 * latent_size), (latent_size, width), (width, width),
                 (width, 2 * columns))  # fmt: skip
        return sum((layer_cost(*pair) for pair in pairs), LayerCost())
    size, _, channels = shape
    halvings = num_halvings(size)
    costs, inputs = layer_cost(9 * channels, 32, positions=size**2), 32
    for _ in range(halvings):
        size = -(-size // 2)
        costs, inputs = costs + layer_cost(9 * inputs, 64, positions=size**2), 64
    costs += layer_cost(size**2 * 64, 256) + layer_cost(256, 2 * latent_size)
    costs += layer_cost(latent_size, 256) + layer_cost(256, size**2 * 64)
    for _ in range(halvings):
        costs, inputs, size = costs + layer_cost(16 * inputs, 32, positions=size**2), 32, 2 * size
    return costs + layer_cost(9 * inputs, channels, positions=size**2)
