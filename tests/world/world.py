"""The table of models of the kinds that Keras's examples have, and what they are trained on.

A model is a function that returns a compiled Keras model, registered by `world_model` with its data and with what is
expected of it under several replicas. `comparison` trains all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

NUM_EPOCHS = 2
NUM_ROWS, BATCH_SIZE = 21, 8  # batches of 8, 8 and 5 rows

FitArguments = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class WorldModel:
    """One model of the table.

    Attributes:
        name: its kind.
        build: returns the compiled model; runs in the strategy's scope.
        data: fresh arguments of `fit`; those that `evaluate` and `predict` know go to them as well.
        refused: None where N replicas must give what one device gives; else what the message of the error must match.
        not_built: None where several workers can build it; else what TensorFlow's error must match that says why not.
        for_replicas: a model to use in place of `build` where several replicas are compared with one device, and on
            that device: one that draws no random numbers in training, say.
        for_reference: the model on one device that N replicas are compared with; a function of their number.
        evaluates: whether it can be evaluated.
        predicts: whether it can predict.
        quick: whether it belongs to the tests that always run.
    """

    name: str
    build: Callable[[], keras.Model]
    data: Callable[[], FitArguments]
    refused: str | None = None
    not_built: str | None = None
    for_replicas: Callable[[], keras.Model] | None = None
    for_reference: Callable[[int], keras.Model] | None = None
    evaluates: bool = True
    predicts: bool = True
    quick: bool = False


MODELS: dict[str, WorldModel] = {}


def world_model(data: Callable[[], FitArguments], **fields: Any) -> Callable[[Any], Any]:
    """Puts a function that builds a model into the table, under the function's name."""

    def register(build: Callable[[], keras.Model]) -> Callable[[], keras.Model]:
        MODELS[build.__name__] = WorldModel(name=build.__name__, build=build, data=data, **fields)
        return build

    return register


def adam(learning_rate: float = 0.01, **options: Any) -> keras.optimizers.Adam:
    """An Adam that makes no step of a gradient which is rounding alone."""
    return keras.optimizers.Adam(learning_rate, epsilon=1e-3, **options)


def sgd(learning_rate: float = 0.05) -> keras.optimizers.SGD:
    """Plain steps, which cost the least to trace."""
    return keras.optimizers.SGD(learning_rate, momentum=0.9)


# --- Data ---------------------------------------------------------------------------------------------------------


def rows(*shape: int, seed: int = 0, num_rows: int = NUM_ROWS) -> np.ndarray:
    """Normal numbers."""
    return np.random.default_rng(seed).normal(size=(num_rows, *shape)).astype("float32")


def pixels(*shape: int, seed: int = 0, num_rows: int = NUM_ROWS) -> np.ndarray:
    """Uniform numbers from 0 to 1."""
    return np.random.default_rng(seed).uniform(size=(num_rows, *shape)).astype("float32")


def whole_numbers(*shape: int, below: int, seed: int = 1, num_rows: int = NUM_ROWS) -> np.ndarray:
    """Uniform whole numbers: classes, tokens, identities."""
    return np.random.default_rng(seed).integers(0, below, size=(num_rows, *shape)).astype("int32")


def sentences(length: int, *, vocabulary: int = 12, seed: int = 2, num_rows: int = NUM_ROWS) -> np.ndarray:
    """Token ids from 2, behind each sentence padding of 0."""
    tokens = whole_numbers(length, below=vocabulary - 2, seed=seed, num_rows=num_rows) + 2
    lengths = np.random.default_rng(seed + 1).integers(2, length + 1, size=(num_rows, 1))
    return np.where(np.arange(length) < lengths, tokens, 0).astype("int32")


def batches(x: Any, y: Any = None, sample_weight: Any = None) -> FitArguments:
    """Arguments of `fit` for arrays."""
    found = {"x": x, "y": y, "sample_weight": sample_weight, "batch_size": BATCH_SIZE}
    return {name: value for name, value in found.items() if value is not None}


def image_classes(size: int = 12, channels: int = 1, num_classes: int = 3) -> FitArguments:
    """Images and their classes."""
    return batches(pixels(size, size, channels), whole_numbers(below=num_classes))
