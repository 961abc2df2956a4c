"""Blocks of a model whose activations are recomputed in the backward pass instead of being stored."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from tfaccel.errors import WorkloadError
from tfaccel.training.private import private_api
from tfaccel.training.steps.rematerialized import recomputed


def rematerialize(block: keras.Model) -> keras.Model:
    """Recomputes a block's activations in the backward pass: saves memory at the cost of a second forward pass.

    Gradients, weights and masks are unchanged. `keras.remat` alone would update BatchNormalization's moving statistics
    twice in each step, drop masks, and give other gradients for embeddings and for weights that have none. The block is
    saved as an ordinary model.

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
        state = _state(layer)
        if layer not in normalizations and state:
            raise WorkloadError(
                f"Layer {layer.name!r} ({type(layer).__name__}) cannot be recomputed: it keeps a state "
                f"({state[0].path}). Leave it out of the block."
            )
    call = block.call

    def rematerialized_call(inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if not training:
            return call(inputs, training=training, mask=mask)
        num_runs = 0

        def compute(*leaves: Any) -> Any:
            nonlocal num_runs
            num_runs += 1
            values = keras.tree.pack_sequence_as(inputs, leaves)
            with kept_statistics(normalizations) if num_runs > 1 else contextlib.nullcontext():
                return call(values, training=True, mask=mask)

        return recomputed(compute, keras.tree.flatten(inputs))

    block.call = rematerialized_call
    return block


def _state(layer: keras.layers.Layer) -> list[keras.Variable]:
    """The variables that a layer changes when it is called, unlike the weights of a frozen one."""
    weights = [one for inner in private_api.all_layers(layer) for one in private_api.weights_made_trainable(inner)]
    return [variable for variable in layer.non_trainable_variables if all(variable is not one for one in weights)]


@contextlib.contextmanager
def kept_statistics(normalizations: list[keras.layers.BatchNormalization]) -> Iterator[None]:
    """Restores moving statistics afterwards, without changing the layers, which other replicas use too."""
    variables = [variable for layer in normalizations for variable in _state(layer)]
    before = [keras.ops.copy(variable) for variable in variables]
    yield
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
