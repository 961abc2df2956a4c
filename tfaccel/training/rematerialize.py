"""Blocks of a model whose activations are recomputed in the backward pass instead of being stored."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from tfaccel.errors import WorkloadError


def rematerialize(block: keras.Model) -> keras.Model:
    """Recomputes a block's activations in the backward pass: saves memory at the cost of a second forward pass.

    Gradients and weights are unchanged. `keras.remat` alone would update BatchNormalization's moving statistics twice
    in each step; here recomputing leaves them unchanged. The block is saved as an ordinary model.

    Args:
        block: a functional or sequential model with one input, used as a layer of a larger one.

    Returns:
        The same block.

    Raises:
        WorkloadError: if a layer has other state, such as Dropout's seed, which recomputing would change.

    Example:
        >>> block = rematerialize(keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu")]))
        >>> model = keras.Sequential([keras.Input((4,)), block, keras.layers.Dense(1)])
    """
    normalizations = [layer for layer in block.layers if isinstance(layer, keras.layers.BatchNormalization)]
    for layer in block.layers:
        if layer not in normalizations and layer.non_trainable_variables:
            raise WorkloadError(
                f"Layer {layer.name!r} ({type(layer).__name__}) cannot be recomputed: it keeps a state "
                f"({layer.non_trainable_variables[0].path}). Leave it out of the block."
            )
    call = block.call

    def rematerialized_call(inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if not training:
            return call(inputs, training=training, mask=mask)
        num_calculations = 0

        def calculate(values: Any) -> Any:
            nonlocal num_calculations
            num_calculations += 1
            with kept_statistics(normalizations) if num_calculations > 1 else contextlib.nullcontext():
                return call(values, training=True, mask=mask)

        return keras.remat(calculate)(inputs)

    block.call = rematerialized_call
    return block


@contextlib.contextmanager
def kept_statistics(normalizations: list[keras.layers.BatchNormalization]) -> Iterator[None]:
    """Restores moving statistics afterwards, without changing the layers, which other replicas use too."""
    variables = [variable for layer in normalizations for variable in layer.non_trainable_variables]
    before = [keras.ops.copy(variable) for variable in variables]
    yield
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
