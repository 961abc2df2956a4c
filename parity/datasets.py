"""The data of the parity cases: small deterministic arrays, in the formats that `Model.fit` accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.parity.case import ParityCase

NUM_EPOCHS = 2
STEPS_PER_EPOCH = 10
NUM_STEPS = NUM_EPOCHS * STEPS_PER_EPOCH

NUM_FEATURES = 6
IMAGE_SHAPE = (5, 5, 2)
NUM_TOKENS = 5
VOCABULARY = 16
NUM_CLASSES = 3
CLASS_WEIGHTS = {0: 1.0, 1: 2.0, 2: 0.5}

# Marks a row whose gradient overflows; no other row has this value.
MARK = float(VOCABULARY - 1)
OVERFLOWING_STEP = 3


@dataclass(frozen=True)
class Arrays:
    """Inputs, targets and sample weights of a dataset; each an array or a dict of arrays, rows first."""

    x: Any
    y: Any
    sample_weight: Any = None

    def rows(self, start: int, stop: int) -> Arrays:
        """Slices all arrays to rows `start` to `stop`."""
        parts = [self.x, self.y, self.sample_weight]
        return Arrays(*keras.tree.map_structure(lambda a: None if a is None else a[start:stop], parts))

    def in_other_order(self, batch_size: int, seed: int) -> Arrays:
        """The same batches, with the rows of each in a random order."""
        parts = [self.x, self.y, self.sample_weight]
        num_rows = len(keras.tree.flatten(self.x)[0])
        rng = np.random.default_rng(seed)
        batches = np.split(np.arange(num_rows), range(batch_size, num_rows, batch_size))
        order = np.concatenate([rng.permutation(rows) for rows in batches])
        return Arrays(*keras.tree.map_structure(lambda a: None if a is None else a[order], parts))


def global_batch_size(num_replicas: int) -> int:
    """The smallest multiple of `num_replicas` that is at least 12."""
    return num_replicas * -(-12 // num_replicas)


def num_rows(case: ParityCase) -> int:
    """The number of rows in one epoch of `STEPS_PER_EPOCH` batches."""
    replicas = case.placement.num_replicas
    last = {
        "even": global_batch_size(replicas),
        "short": global_batch_size(replicas) - 1,
        "empty": max(1, replicas - 1),
    }
    return (STEPS_PER_EPOCH - 1) * global_batch_size(replicas) + last[case.last_batch]


def arrays(case: ParityCase) -> Arrays:
    """The arrays of a case, for one epoch.

    In float16 the last row of step `OVERFLOWING_STEP`, which the last replica gets, is marked: its gradient is
    infinite. With masks or sample weights, the last third of another batch is all padding or has zero weights.
    """
    rows, size = num_rows(case), global_batch_size(case.placement.num_replicas)
    without = slice((OVERFLOWING_STEP + 2) * size - size // 3, (OVERFLOWING_STEP + 2) * size)
    inputs = _inputs(rows)
    if case.weighting == "masks":
        inputs["tokens"][without] = 0
    if case.dtype_policy == "mixed_float16":
        for values in inputs.values():
            values[(OVERFLOWING_STEP + 1) * size - 1].flat[0] = MARK
    rng = np.random.default_rng(21)
    labels = rng.integers(0, NUM_CLASSES, (rows, NUM_TOKENS) if case.weighting == "masks" else (rows,)).astype("int32")
    weights = rng.uniform(0, 2, rows).astype("float32")
    weights[without] = 0.0
    x: Any = inputs[_INPUT_OF_MODEL.get(case.model, "features")]
    y: Any = labels
    sample_weight: Any = weights
    if case.model == "gan":
        x = {"real": inputs["features"], "latent": inputs["latent"]}
    if case.model == "two_outputs":
        x = {"left": inputs["features"], "right": inputs["latent"]}
        y = {"label": labels, "value": rng.normal(size=(rows, 2)).astype("float32")}
        sample_weight = {"label": weights, "value": weights[::-1].copy()}
    return Arrays(x, y, sample_weight if case.weighting == "sample_weights" else None)


_INPUT_OF_MODEL = {
    **dict.fromkeys(("batch_norm", "batch_norm_by_replica"), "images"),
    **dict.fromkeys(("lstm", "stateful_lstm", "attention", "embedding", "embedding_summed"), "tokens"),
    **dict.fromkeys(("embedding_rows", "embedding_host"), "tokens"),
}


def _inputs(rows: int) -> dict[str, np.ndarray]:
    """Random inputs of every kind; token ids are padded with zeros."""
    rng = np.random.default_rng(20)
    inputs = {
        "features": rng.uniform(-1, 1, (rows, NUM_FEATURES)).astype("float32"),
        "latent": rng.uniform(-1, 1, (rows, NUM_FEATURES)).astype("float32"),
        "images": rng.uniform(-1, 1, (rows, *IMAGE_SHAPE)).astype("float32"),
        "tokens": rng.integers(1, VOCABULARY - 1, (rows, NUM_TOKENS)).astype("int32"),
    }
    inputs["tokens"][np.arange(NUM_TOKENS) >= rng.integers(1, NUM_TOKENS + 1, (rows, 1))] = 0
    return inputs


class Batches(keras.utils.PyDataset):
    """Batches of arrays as a `PyDataset`."""

    def __init__(self, parts: tuple[Any, ...], size: int) -> None:
        super().__init__()
        self._parts = parts
        self._size = size

    def __len__(self) -> int:
        return -(-len(keras.tree.flatten(self._parts)[0]) // self._size)

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * self._size, (index + 1) * self._size)
        return keras.tree.map_structure(lambda a: a[rows], self._parts)


def as_source(case: ParityCase, parts: tuple[Any, ...]) -> Any:
    """Converts `parts` (x, y and weights, if present) to the case's kind of dataset, in batches."""
    size = global_batch_size(case.placement.num_replicas)
    if case.source == "py_dataset":
        return Batches(parts, size)
    dataset = tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0])
    return dataset.batch(size)


def data_arguments(case: ParityCase, data: Arrays) -> dict[str, Any]:
    """The data arguments of `fit` or `evaluate`."""
    if case.source == "numpy":
        return {
            "x": data.x,
            "y": data.y,
            "sample_weight": data.sample_weight,
            "batch_size": global_batch_size(case.placement.num_replicas),
        }
    parts = (data.x, data.y) if data.sample_weight is None else (data.x, data.y, data.sample_weight)
    return {"x": as_source(case, parts)}


def validation_argument(case: ParityCase, data: Arrays) -> Any:
    """The `validation_data` argument of `fit`."""
    if case.source == "numpy":
        parts = (data.x, data.y, data.sample_weight)
        return parts if data.sample_weight is not None else parts[:2]
    return data_arguments(case, data)["x"]


def input_arguments(case: ParityCase, data: Arrays) -> dict[str, Any]:
    """The data arguments of `predict`."""
    if case.source == "numpy":
        return {"x": data.x, "batch_size": global_batch_size(case.placement.num_replicas)}
    return {"x": as_source(case, (data.x,))}
