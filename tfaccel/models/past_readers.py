"""Two ways to read the past of a series: gated recurrent units, and temporal convolutions.

Sources:
    Cho et al., Learning phrase representations using RNN encoder-decoder, 2014, https://arxiv.org/abs/1406.1078
    Bai et al., An empirical evaluation of generic convolutional and recurrent networks, 2018,
        https://arxiv.org/abs/1803.01271
"""

from __future__ import annotations

from typing import Any

MODELS = ("gru", "convolution")
WIDTH = 48  # numbers that describe the past at each step, unless said otherwise
KERNEL_SIZE = 3


def read_past(past: Any, model: str, *, width: int, dropout: float, remat: bool) -> Any:
    """A description of the past, a tensor of shape (num_windows, width).

    Args:
        past: a tensor of shape (num_windows, window, num_columns).
        model: gru or convolution.
        width: numbers that describe the past at each step.
        dropout: part of the hidden values that is left out in each step.
        remat: calculate the inside of each convolution block again in the backward pass.
    """
    from keras import layers

    if model == "gru":
        # What is carried from step to step stays float32: in 16 bits, errors were a seventh larger.
        first = layers.GRU(width, return_sequences=True, dtype="float32")(past)
        return layers.GRU(width, dtype="float32")(layers.Dropout(dropout, dtype="float32")(first))
    x = past
    for dilation in dilations(past.shape[1]):
        x = layers.Dropout(dropout)(temporal_block(x, width, dilation, remat=remat))
    return x[:, -1]


def temporal_block(x: Any, width: int, dilation: int, *, remat: bool) -> Any:
    """Two causal convolutions that look back over 2 (KERNEL_SIZE - 1) dilation steps, and a way around them."""
    import keras
    from keras import layers

    from tfaccel.training.rematerialize import rematerialize

    inputs = y = keras.Input(x.shape[1:])
    for _ in range(2):
        y = layers.Conv1D(width, KERNEL_SIZE, padding="causal", dilation_rate=dilation, activation="silu")(y)
    around = inputs if x.shape[-1] == width else layers.Dense(width)(inputs)
    block = keras.Model(inputs, layers.Add()([around, y]), name=f"dilation_{dilation}")
    return (rematerialize(block) if remat else block)(x)


def dilations(window: int) -> list[int]:
    """Of the temporal blocks, which together look back over the window.

    Example:
        >>> dilations(64)
        [1, 2, 4, 8, 16]
    """
    found = [1]
    while 2 * (KERNEL_SIZE - 1) * (2 * found[-1] - 1) < window:
        found.append(2 * found[-1])
    return found
