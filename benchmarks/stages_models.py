"""Small models of four families, deep enough to be cut into stages of equal size, and data for them."""

from __future__ import annotations

from typing import Any

import numpy as np

NUM_CLASSES, NUM_TOKENS = 10, 50
INPUTS = {"mlp": (32,), "cnn": (16, 16, 3), "lstm": (12, 8), "transformer": (12,)}


def stages_model(family: str) -> Any:
    """An uncompiled classifier with `NUM_CLASSES` logits."""
    import keras

    is_text = family == "transformer"
    inputs = keras.Input(INPUTS[family], dtype="int32" if is_text else "float32")
    outputs = {"mlp": _mlp, "cnn": _cnn, "lstm": _lstm, "transformer": _transformer}[family](keras.layers, inputs)
    return keras.Model(inputs, keras.layers.Dense(NUM_CLASSES)(outputs))


def stages_data(family: str, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Random examples and labels."""
    random, shape = np.random.default_rng(0), (num_rows, *INPUTS[family])
    labels = random.integers(0, NUM_CLASSES, num_rows)
    if family == "transformer":
        return random.integers(0, NUM_TOKENS, shape).astype("int32"), labels
    return random.normal(size=shape).astype("float32"), labels


def _mlp(layers: Any, x: Any) -> Any:
    for _ in range(6):
        x = layers.Dropout(0.1)(layers.Dense(64, activation="relu")(x))
    return x


def _cnn(layers: Any, x: Any) -> Any:
    x = layers.Conv2D(16, 3, padding="same")(x)
    for _ in range(4):
        y = layers.Conv2D(16, 3, padding="same", activation="relu")(layers.BatchNormalization()(x))
        x = layers.Add()([x, y])
    return layers.GlobalAveragePooling2D()(x)


def _lstm(layers: Any, x: Any) -> Any:
    for _ in range(3):
        x = layers.LSTM(32, return_sequences=True)(x)
    return layers.LSTM(32)(x)


def _transformer(layers: Any, x: Any) -> Any:
    x = layers.Embedding(NUM_TOKENS, 32)(x)
    for _ in range(3):
        x = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(4, 8, dropout=0.1)(x, x)]))
        y = layers.Dense(32)(layers.Dense(64, activation="gelu")(x))
        x = layers.LayerNormalization()(layers.Add()([x, y]))
    return layers.GlobalAveragePooling1D()(x)
