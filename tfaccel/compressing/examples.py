"""Examples to compress a model with: those that show the ranges of activations, and those that it is judged by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from tfaccel.compressing.call_signature import CallSignature
from tfaccel.errors import CompressionError
from tfaccel.planning.workload import Workload

# What a pass over examples gives: inputs, targets and weights of batches, as arrays; targets and weights may be None.
Batches = Callable[[], Iterator[tuple[Any, Any, Any]]]

ROWS_AT_ONCE = 256


def batches_of(data: Any, *, what: str) -> Batches:
    """Passes over data that a user gave.

    Arguments:
        data: a `tf.data.Dataset` of batches, or (inputs, targets) or (inputs, targets, weights) as arrays, or the
            inputs alone; inputs may be a nest (a dictionary, a list) of arrays.
        what: how messages call it.

    Raises:
        CompressionError: for data without examples, or arrays of different numbers of rows.
    """
    if hasattr(data, "as_numpy_iterator"):
        return lambda: map(keras.utils.unpack_x_y_sample_weight, data.as_numpy_iterator())
    parts = keras.tree.map_structure(np.asarray, keras.utils.unpack_x_y_sample_weight(data))
    lengths = {len(leaf) if leaf.ndim else 0 for leaf in keras.tree.flatten(parts) if leaf.dtype != object}
    if len(lengths) != 1 or 0 in lengths:
        raise CompressionError(
            f"{what} must be a tf.data.Dataset of batches, or arrays with equally many rows, at least one. Received "
            f"arrays of {', '.join(map(str, sorted(lengths))) or 'no'} rows."
        )
    (length,) = lengths

    def cut() -> Iterator[tuple[Any, Any, Any]]:
        for start in range(0, length, ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            yield keras.tree.map_structure(lambda leaf: None if leaf.dtype == object else leaf[rows], parts)  # noqa: B023

    return cut


def training_batches(workload: Workload) -> Batches:
    """Passes over the training set, in the order of epoch 0 and seed 0."""
    return lambda: _unpacked(workload.train_data(workload.global_batch_size, seed=0, epoch=0))


def held_out_batches(workload: Workload) -> Batches | None:
    """Passes over the validation set; None where there is none."""
    if workload.validation_data is None:
        return None
    validation_data = workload.validation_data
    return lambda: _unpacked(validation_data(workload.global_batch_size))


def rows_of(batches: Batches, signature: CallSignature, *, num_rows: int, what: str) -> list[dict[str, np.ndarray]]:
    """The first examples of a pass: arrays by name, of shape (1, ...).

    Raises:
        CompressionError: if they are not as the model takes them, or there is none.
    """
    rows: list[dict[str, np.ndarray]] = []
    for x, _, _ in batches():
        for row in signature.rows(x, what=what):
            if len(rows) == num_rows:
                return rows
            rows.append(row)
    if not rows:
        raise CompressionError(f"There are no examples in {what}. Give at least one.")
    return rows


def first_inputs(batches: Batches, *, what: str) -> Any:
    """The inputs of the first batch of a pass.

    Raises:
        CompressionError: if there is none.
    """
    for x, _, _ in batches():
        return x
    raise CompressionError(f"There are no examples in {what}. Give at least one.")


def _unpacked(dataset: Any) -> Iterator[tuple[Any, Any, Any]]:
    return map(keras.utils.unpack_x_y_sample_weight, dataset.as_numpy_iterator())
