"""What a step of the recipe for image generation costs, counted from the shapes of its two networks."""

from __future__ import annotations

import math

from tfaccel.data.image_set import ImageSet
from tfaccel.planning.layer_costs import LayerCost, layer_cost


def num_halvings(image_size: int) -> int:
    """How often images are halved: down to 2, 3 or 4 pixels.

    Example:
        >>> [num_halvings(size) for size in (8, 28, 64)]
        [1, 3, 4]
    """
    return max(1, math.ceil(math.log2(image_size / 4)))


def gan_costs(images: ImageSet, latent_size: int, *, width: int = 32) -> tuple[float, int]:
    """Floating-point operations of one image's part in a step, and the number of trainable parameters.

    Args:
        images: what is drawn.
        latent_size: numbers of noise from which an image is made.
        width: filters at the image's full size.

    Example:
        >>> from tfaccel.data.digits import digits
        >>> gan_costs(digits(), 32)
        (15489024.0, 243042)
    """
    halvings, num_classes = num_halvings(images.image_size), len(images.class_names)
    size, filters = -(-images.image_size // 2**halvings), width * 2**halvings
    made = layer_cost(latent_size + num_classes, size * size * filters) + LayerCost(num_parameters=2 * filters)
    for _ in range(halvings):
        filters //= 2
        made, size = made + layer_cost(32 * filters, filters, positions=size**2, per_unit=2), 2 * size
    made += layer_cost(9 * filters, images.num_channels, positions=size**2)
    size, filters = images.image_size, width
    judged = layer_cost(9 * images.num_channels, filters, positions=size**2)
    for _ in range(halvings):
        filters, size = 2 * filters, -(-size // 2)
        judged += layer_cost(8 * filters, filters, positions=size**2)
    features = 4 * width
    judged += layer_cost(size**2 * filters, features) + layer_cost(num_classes, features, per_unit=0)
    judged += layer_cost(features, 1)
    # An image is made twice and judged three times; backward, the first judgement's two and the last one's half.
    operations = 2.0 * (4 * made.multiplications + 8 * judged.multiplications)
    return operations, made.num_parameters + judged.num_parameters
