"""The lookup tables in a model's layers, which a SavedModel must be told of."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private.private_api import all_layers


def lookup_tables(model: keras.Model) -> list[Any]:
    """The tables of layers such as IntegerLookup and StringLookup, which Keras does not count as weights.

    Example:
        >>> lookup = keras.layers.IntegerLookup(vocabulary=[5, 7])
        >>> model = keras.Sequential([keras.Input((3,), dtype="int64"), lookup])
        >>> len(lookup_tables(model))
        1
    """
    found: dict[int, Any] = {}
    for layer in all_layers(model):
        for value in vars(layer).values():
            if isinstance(value, tf.saved_model.experimental.TrackableResource):
                found[id(value)] = value
    return list(found.values())
