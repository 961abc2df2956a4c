"""The private API of Keras's LSTM cell that tells whether a layer computes what Keras's layer computes."""

from __future__ import annotations

import keras

from tfaccel.tested_versions import private_part

_GATES_OF_LSTM = "_compute_carry_and_output_fused"


def computes_as_keras(layer: keras.layers.Layer, kind: type[keras.layers.RNN]) -> bool:
    """Whether a layer is a Keras `LSTM` or `GRU` with the default activations and without recurrent dropout.

    Args:
        layer: any layer; one that overrides Keras's computation is none.
        kind: `keras.layers.LSTM` or `keras.layers.GRU`.
    """
    cell_kind = keras.layers.LSTMCell if kind is keras.layers.LSTM else keras.layers.GRUCell
    if not isinstance(layer, kind) or type(layer.cell) is not cell_kind or layer.use_cudnn is True:
        return False
    if cell_kind is keras.layers.LSTMCell:
        private_part(cell_kind, _GATES_OF_LSTM)  # an unknown version of Keras computes the gates elsewhere
    of_class = all(getattr(type(layer), name) is getattr(kind, name) for name in ("call", "inner_loop"))
    of_cell = not any(name in vars(layer.cell) for name in ("call", _GATES_OF_LSTM))
    cell, activations = layer.cell, keras.activations
    is_usual = cell.activation is activations.tanh and cell.recurrent_activation is activations.sigmoid
    return of_class and of_cell and is_usual and cell.implementation == 2 and not cell.recurrent_dropout
