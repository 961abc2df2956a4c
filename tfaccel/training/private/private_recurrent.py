"""The private API of Keras's cells that tells whether an `LSTM` or `GRU` layer computes what Keras's computes."""

from __future__ import annotations

import keras

from tfaccel.training.steps.overrides import keeps_methods

_GATES_OF_LSTM = "_compute_carry_and_output_fused"


def computes_as_keras(layer: keras.layers.Layer, kind: type[keras.layers.RNN]) -> bool:
    """Whether a layer is a Keras `LSTM` or `GRU` whose computation is not overridden, with the default settings.

    These are the default activations, the default `implementation` and no recurrent dropout.

    Args:
        layer: any layer.
        kind: `keras.layers.LSTM` or `keras.layers.GRU`.
    """
    cell_kind = keras.layers.LSTMCell if kind is keras.layers.LSTM else keras.layers.GRUCell
    if not keeps_methods(layer, kind, "call", "inner_loop") or layer.use_cudnn is True:
        return False
    cell, activations = layer.cell, keras.activations
    # An unknown version of Keras may compute the gates elsewhere; then this raises an error.
    names = ("call", _GATES_OF_LSTM) if cell_kind is keras.layers.LSTMCell else ("call",)
    if type(cell) is not cell_kind or not keeps_methods(cell, cell_kind, *names):
        return False
    is_usual = cell.activation is activations.tanh and cell.recurrent_activation is activations.sigmoid
    return is_usual and cell.implementation == 2 and not cell.recurrent_dropout
