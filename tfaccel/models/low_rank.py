"""Low-rank updates (LoRA) of a whole network.

Source:
    Hu et al., LoRA, 2022, https://arxiv.org/abs/2106.09685
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfaccel.errors import WorkloadError

if TYPE_CHECKING:
    import keras


def with_lora(backbone: keras.Model, rank: int) -> None:
    """Freezes a network but for low-rank updates of its dense layers and convolutions."""
    import keras

    from tfaccel.training.private_api import all_layers

    kinds = (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding, keras.layers.Conv2D)
    layers = [layer for layer in all_layers(backbone) if not isinstance(layer, keras.Model)]
    changed = [layer for layer in layers if type(layer) in kinds]
    if not changed:
        raise WorkloadError("LoRA is for dense layers and convolutions, and this backbone has none.")
    for layer in layers:
        layer.trainable = layer in changed
    for layer in changed:
        layer.enable_lora(rank)
