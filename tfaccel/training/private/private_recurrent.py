"""The private API of Keras's LSTM cell that tells whether a layer computes what Keras's LSTM computes."""

from __future__ import annotations

import keras

from tfaccel.tested_versions import private_part

_GATES = "_compute_carry_and_output_fused"


def computes_keras_lstm(layer: keras.layers.Layer) -> bool:
    """Whether a layer is an `LSTM` with Keras's default activations that overrides none of Keras's computation."""
    kind, cell_kind = keras.layers.LSTM, keras.layers.LSTMCell
    if not (isinstance(layer, kind) and type(layer.cell) is cell_kind):
        return False
    overridden = any(getattr(type(layer), name) is not getattr(kind, name) for name in ("call", "inner_loop"))
    overridden = overridden or any(name in vars(layer.cell) for name in ("call", _GATES))
    private_part(cell_kind, _GATES)  # an unknown version of Keras computes its gates elsewhere
    cell = layer.cell
    is_usual = cell.activation is keras.activations.tanh and cell.recurrent_activation is keras.activations.sigmoid
    return is_usual and not overridden and not cell.recurrent_dropout and cell.implementation == 2
