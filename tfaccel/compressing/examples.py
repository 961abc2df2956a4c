"""Examples to compress a model with: representative ones to calibrate with, and held-out ones to evaluate on."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfaccel.compressing.call_signature import CallSignature
from tfaccel.errors import CompressionError
from tfaccel.planning.workload import Workload

# A pass over examples yields (inputs, targets, weights) as arrays; targets and weights may be None.
Batches = Callable[[], Iterator[tuple[Any, Any, Any]]]

ROWS_AT_ONCE = 256
_INFINITE = -1  # tf.data's cardinality of an infinite data set


def get_batches(data: Any, *, what: str) -> Batches:
    """Passes over data that a user gave.

    Args:
        data: a `tf.data.Dataset` of batches, or (inputs, targets) or (inputs, targets, weights) as arrays, or the
            inputs alone; inputs may be a nest (a dictionary, or a list in such a tuple) of arrays.
        what: what error messages call it.

    Raises:
        CompressionError: for data of another type, without examples, or with arrays of different lengths.
    """
    if hasattr(data, "as_numpy_iterator"):
        return lambda: map(keras.utils.unpack_x_y_sample_weight, data.as_numpy_iterator())
    if not isinstance(data, list | tuple | Mapping) and not hasattr(data, "__array__"):
        raise CompressionError(
            f"{what} must be a tf.data.Dataset of batches, or arrays with a row for each example. Received: "
            f"{type(data).__name__}."
        )
    if isinstance(data, list | tuple) and not 1 <= len(data) <= 3:
        raise CompressionError(f"{what} must be (inputs, targets, weights) at most. Received: {len(data)} parts.")
    parts = tuple(_arrays(part) for part in keras.utils.unpack_x_y_sample_weight(data))
    lengths = {len(leaf) if leaf.ndim else 0 for leaf in keras.tree.flatten(parts) if leaf is not None}
    if len(lengths) != 1 or 0 in lengths:
        raise CompressionError(
            f"{what} must be a tf.data.Dataset of batches, or arrays of the same length, at least one row. Received "
            f"arrays of {', '.join(map(str, sorted(lengths))) or 'no'} rows."
        )
    (length,) = lengths

    def cut() -> Iterator[tuple[Any, Any, Any]]:
        for start in range(0, length, ROWS_AT_ONCE):
            x, y, weights = (_rows(part, slice(start, start + ROWS_AT_ONCE)) for part in parts)
            yield x, y, weights

    return cut


def get_repeated_batches(data: Any, *, what: str) -> Batches:
    """Passes over data that a user gave, each with the same batches in the same order.

    A `tf.data.Dataset` with random order or values is cached on disk while the passes are needed.

    Raises:
        CompressionError: as `get_batches`, and for an infinite data set.
    """
    batches = get_batches(data, what=what)
    if not hasattr(data, "cardinality"):
        return batches
    if int(data.cardinality()) == _INFINITE:
        raise CompressionError(
            f"{what} must end. Received: an infinite data set. Leave `repeat()` out, or say how many "
            "batches it has with `take()`."
        )
    if _is_same(_first(batches), _first(batches)):
        return batches
    folder = tempfile.mkdtemp(prefix="tfaccel-held-out-")
    data.save(folder)
    kept = get_batches(type(data).load(folder), what=what)
    weakref.finalize(kept, shutil.rmtree, folder, True)
    return kept


def training_batches(workload: Workload) -> Batches:
    """Passes over the training set, in the order of epoch 0 and seed 0."""
    return lambda: _unpacked(workload.train_data(workload.global_batch_size, seed=0, epoch=0))


def held_out_batches(workload: Workload) -> Batches | None:
    """Passes over the validation set; None where there is none."""
    if workload.validation_data is None:
        return None
    validation_data = workload.validation_data
    return lambda: _unpacked(validation_data(workload.global_batch_size))


def get_rows(batches: Batches, signature: CallSignature, *, num_rows: int, what: str) -> list[dict[str, np.ndarray]]:
    """The first examples of a pass: arrays by name, of shape (1, ...).

    Raises:
        CompressionError: if they do not fit the model, or there are none.
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


def check_ranges(rows: Sequence[Mapping[str, np.ndarray]], *, what: str) -> None:
    """Raises CompressionError for examples with NaN or infinite values."""
    for number, row in enumerate(rows):
        for name, array in row.items():
            if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
                value = array[~np.isfinite(array)][0]
                raise CompressionError(
                    f"Ranges of activations cannot be calibrated with NaN or infinite values. Received: {value} in "
                    f"input {name!r} of example {number} of {what}. Leave such examples out."
                )


def first_inputs(batches: Batches, *, what: str) -> Any:
    """The inputs of the first batch of a pass.

    Raises:
        CompressionError: if there are none.
    """
    for x, _, _ in batches():
        return x
    raise CompressionError(f"There are no examples in {what}. Give at least one.")


def _arrays(part: Any) -> Any:
    return None if part is None else keras.tree.map_structure(np.asarray, part)


def _rows(part: Any, rows: slice) -> Any:
    return None if part is None else keras.tree.map_structure(lambda leaf: leaf[rows], part)


def _first(batches: Batches) -> list[Any]:
    return keras.tree.flatten(next(iter(batches()), ()))


def _is_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two nests have equal values; NaN equals NaN."""
    pairs = zip(map(np.asarray, one), map(np.asarray, other), strict=True)
    return all(a.shape == b.shape and _content(a) == _content(b) for a, b in pairs)


def _content(array: np.ndarray) -> Any:
    return array.tolist() if array.dtype == object else array.tobytes()


def _unpacked(dataset: Any) -> Iterator[tuple[Any, Any, Any]]:
    return map(keras.utils.unpack_x_y_sample_weight, dataset.as_numpy_iterator())
