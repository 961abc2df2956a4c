"""Data in the forms that `Model.fit` accepts, as a workload's data: arrays, and others that come as batches.

They are recognized, validated and identified without importing TensorFlow.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tfaccel.data.epochs import random_order, row_batches
from tfaccel.data.given_batches import GivenDataset, GivenGrain, GivenPyDataset, named_weights
from tfaccel.data.grain_batches import is_grain
from tfaccel.data.private_pipelines import data_adapter, dense_arrays
from tfaccel.errors import DataError, in_one_line

ACCEPTED = (
    "arrays (or dictionaries and lists of arrays), data frames, a tf.data.Dataset, a keras.utils.PyDataset, or a Grain "
    "dataset or loader"
)
# Package -> what to pass in place of its datasets and loaders.
_INSTEAD = {
    "torch": " Pass the tensors of its dataset, or read its rows in a keras.utils.PyDataset.",
    "datasets": ' Pass columns of x.with_format("numpy")[:], or x.to_tf_dataset(batch_size=NUMBER, columns=..., '
    "label_cols=...) and batch_size=NUMBER.",
}

_ROWS_AT_ONCE = 1024  # that a task prepares


def given_data(x: Any, y: Any = None, sample_weight: Any = None, **options: Any) -> Any:
    """Wraps data of any form that `Model.fit` accepts, to make batches of them.

    Args:
        x, y, sample_weight: as in `Model.fit`.
        **options: `shuffle` and `class_weight`, as in `Model.fit`.

    Returns:
        A `GivenArrays`, `GivenDataset`, `GivenPyDataset` or `GivenGrain`, which serves as a workload's `train_data`;
        its method `validation` serves as the workload's `validation_data`.

    Raises:
        DataError: for any other data, and for arrays of different lengths.

    Example:
        >>> given_data(np.zeros((6, 2)), np.zeros(6)).num_examples
        6
    """
    kind: Any = None
    if _is_a("tensorflow", "data.Dataset", x):
        kind = GivenDataset
    elif _is_a("keras", "utils.PyDataset", x):
        kind = GivenPyDataset
    elif is_grain(x):
        kind = GivenGrain
    elif inspect.isgenerator(x) or hasattr(x, "__next__"):
        raise DataError(
            f"x is a generator or an iterator ({type(x).__name__}), which can be iterated over only once: no epoch can "
            "be repeated or resumed. Pass a keras.utils.PyDataset, tf.data.Dataset.from_generator(...), or arrays."
        )
    if kind is None:
        return GivenArrays(x, y, sample_weight, **options)
    if y is not None or sample_weight is not None:
        raise DataError(
            f"A {kind.what} yields the targets and sample weights itself, as (x, y) or (x, y, sample_weight). "
            f"Leave out {'y' if y is not None else 'sample_weight'}."
        )
    return kind(x, **options)


class GivenArrays:
    """Arrays in memory, batched as `Model.fit` does: the last batch may be smaller.

    Seed and epoch determine the order, which differs in each epoch. Data frames and float64 values are converted as
    Keras does.

    Args:
        x, y, sample_weight: arrays with one row for each example; y and sample_weight may be None.
        shuffle: True; False for the order of the arrays; "batch" to shuffle only within each batch.
        class_weight: class -> its weight in the loss.

    Attributes:
        targets: the targets: a nest of arrays, or None.

    Raises:
        DataError: for anything that is not an array, and for arrays of different lengths.
    """

    what = "array"
    prepares_ahead = True
    not_resumable = ""
    batch_size: int | None = None  # any

    def __init__(
        self, x: Any, y: Any = None, sample_weight: Any = None, *, shuffle: bool | str = True, class_weight: Any = None
    ) -> None:
        given = {"x": x, "y": y, "sample_weight": sample_weight}
        self._parts = {name: _mapped(part, functools.partial(_as_array, name)) for name, part in given.items()}
        self.targets = self._parts["y"]
        self.shuffle = shuffle
        self._class_weight = class_weight
        rows = {f"{name} {leaf.shape}": len(leaf) for name, part in self._parts.items() for leaf in leaves(part)}
        if len(set(rows.values())) > 1:
            raise DataError(f"All arrays must have the same number of rows. Received: {', '.join(rows)}.")
        if not rows or 0 in rows.values():
            raise DataError(f"There is no example to train on. Received: {', '.join(rows) or 'no array'}.")
        self.num_examples = next(iter(rows.values()))

    @property
    def example_bytes(self) -> int | None:
        """Bytes of one example; None if it has objects, such as texts."""
        rows = [leaf[:1] for part in self._parts.values() for leaf in leaves(part)]
        return None if any(row.dtype.kind not in "biufc" for row in rows) else sum(row.nbytes for row in rows)

    def split(self, fraction: float) -> tuple[GivenArrays, GivenArrays]:
        """The first rows for training and the last `fraction` for validation, as `validation_split` of `Model.fit`.

        Raises:
            DataError: if either part would be empty.
        """
        if not isinstance(fraction, float) or not 0 < fraction < 1:
            raise DataError(f"`validation_split` must be a number between 0 and 1. Received: {fraction!r}.")
        stop = math.floor(self.num_examples * (1.0 - fraction))
        if not 0 < stop < self.num_examples:
            raise DataError(f"validation_split={fraction} of {self.num_examples} examples leaves one part empty.")
        return self.take(slice(stop)), GivenArrays(*self._rows(slice(stop, None)))

    def take(self, rows: np.ndarray | slice) -> GivenArrays:
        """The examples in these rows, batched as these data are."""
        return GivenArrays(*self._rows(rows), shuffle=self.shuffle, class_weight=self._class_weight)

    def _rows(self, rows: np.ndarray | slice) -> list[Any]:
        return [_mapped(part, operator.itemgetter(rows)) for part in self._parts.values()]

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """What must not change when a run is resumed: a checksum of all rows, and the settings of the batches."""
        checksum = checksum_of_rows((name, leaf) for name, part in self._parts.items() for leaf in leaves(part))
        return {"data": checksum, "shuffle": self.shuffle, "class_weight": named_weights(self._class_weight)}

    def __call__(
        self, global_batch_size: int, *, seed: int, epoch: int, start_step: int = 0, num_epochs: int = 1
    ) -> Any:
        """The batches of one or more epochs; see `tfaccel.Workload`."""
        passes = self.row_numbers(
            global_batch_size, seed=seed, epoch=epoch, start_step=start_step, num_epochs=num_epochs
        )
        return self._batches(passes, global_batch_size, static=self.num_examples % global_batch_size == 0)

    def row_numbers(
        self, global_batch_size: int, *, seed: int, epoch: int, start_step: int = 0, num_epochs: int = 1
    ) -> list[np.ndarray]:
        """The rows of each epoch in order, int64; arguments as of `__call__`."""
        passes = [self._order(global_batch_size, seed, number) for number in range(epoch, epoch + num_epochs)]
        passes[0] = passes[0][start_step * global_batch_size :]
        return passes

    def validation(self, global_batch_size: int) -> Any:
        """All batches, in the order of the arrays."""
        return self._batches([np.arange(self.num_examples)], global_batch_size, static=False)

    def _order(self, global_batch_size: int, seed: int, epoch: int) -> np.ndarray:
        if not self.shuffle:
            return np.arange(self.num_examples)
        return random_order(self.num_examples, global_batch_size, shuffle=self.shuffle, seed=seed)(epoch)

    def _batches(self, passes: list[np.ndarray], global_batch_size: int, *, static: bool) -> Any:
        import keras
        import tensorflow as tf

        arrays = self.tensors

        def gathered(rows: Any) -> Any:
            return keras.tree.map_structure(lambda a: tf.gather(a, rows), arrays, none_is_leaf=False)

        with tf.device("/CPU:0"):
            batches = [row_batches(rows, global_batch_size, drop_remainder=static) for rows in passes]
            joined = functools.reduce(lambda some, others: some.concatenate(others), batches)
            return joined.map(gathered, num_parallel_calls=tf.data.AUTOTUNE)

    @functools.cached_property
    def tensors(self) -> Any:
        """The batches' structure with all rows in each tensor, converted by Keras's data adapter."""
        try:
            return dense_arrays(data_adapter(*self._parts.values(), batch_size=1, class_weight=self._class_weight))
        except ValueError as error:
            raise DataError(f"Keras does not take these data: {error}") from error


def checksum_of_rows(arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """A checksum of all rows of named arrays, in hexadecimal digits."""
    checksum = hashlib.blake2b(digest_size=16)
    for name, leaf in arrays:
        checksum.update(f"{name} {leaf.dtype} {leaf.shape} ".encode())
        plain = leaf if leaf.dtype != object else np.array("\0".join(map(str, leaf.ravel())).encode())
        checksum.update(np.ascontiguousarray(plain).view(np.uint8).data if plain.size else b"")
    return checksum.hexdigest()


def leaves(nest: Any) -> Iterator[Any]:
    """The arrays in nested dictionaries, lists and tuples; None is skipped.

    Example:
        >>> list(leaves({"a": [1, None], "b": 2}))
        [1, 2]
    """
    if isinstance(nest, Mapping):
        nest = list(nest.values())
    if isinstance(nest, list | tuple):
        for part in nest:
            yield from leaves(part)
    elif nest is not None:
        yield nest


def _mapped(nest: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(nest, Mapping):
        return {name: _mapped(part, function) for name, part in nest.items()}
    if isinstance(nest, list | tuple):
        return tuple(_mapped(part, function) for part in nest)
    return None if nest is None else function(nest)


def _as_array(name: str, value: Any) -> np.ndarray:
    """An array, a tensor or a data frame as a NumPy array."""
    is_frame = type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "to_numpy")
    if not is_frame and not (hasattr(value, "shape") and hasattr(value, "__array__")):
        kind = type(value).__name__
        is_one = isinstance(value, int | float | bool | str)
        hint = f" Write np.array({name})." if is_one else hint_for(value)
        raise DataError(f"{name} must be {ACCEPTED}. Received: {kind}{' in a list' if is_one else ''}.{hint}")
    array = value.to_numpy() if is_frame else np.asarray(value)
    if is_frame and array.ndim == 1:
        array = array[:, np.newaxis]  # as Keras treats a column
    if array.ndim == 0:
        raise DataError(f"{name} must have a first axis of examples. Received a single value: {value!r:.100}.")
    if array.dtype.kind in "SU":
        advice = f"class indices for categories, tf.constant({name}) for texts"
        raise DataError(f"{name} has the dtype {array.dtype}, which Keras does not take. Use {advice}.")
    if array.dtype == object and all(isinstance(one, bytes) for one in array.ravel()):
        array = _as_texts(name, array)
    if array.dtype.kind in "mMV" or (array.dtype == object and not all(isinstance(one, str) for one in array.ravel())):
        columns = value.columns if hasattr(value, "columns") else ()
        odd = [column for column in columns if value[column].to_numpy().dtype == object]
        what = f"Column {odd[0]!r} of {name}" if odd else name
        held = "objects" if array.dtype == object else f"{array.dtype} values"
        raise DataError(f"{what} holds {held} that are not numbers. Encode them as numbers first.")
    return array


def _as_texts(name: str, array: np.ndarray) -> np.ndarray:
    """The texts in the bytes of a tensor of strings: Keras takes arrays of `str`."""
    try:
        return np.array([one.decode() for one in array.ravel()], object).reshape(array.shape)
    except UnicodeDecodeError as error:
        raise DataError(f"{name} holds bytes that are no texts in UTF-8 ({error}).") from error


def hint_for(value: Any) -> str:
    """What to pass in place of data of another library; "" if nothing is known.

    Example:
        >>> hint_for([1.0])
        ''
    """
    return _INSTEAD.get(type(value).__module__.partition(".")[0], "")


def _is_a(package: str, path: str, value: Any) -> bool:
    """Whether a value is an instance of a package's class; False if the package is not imported."""
    found: Any = sys.modules.get(package)
    for part in path.split("."):
        found = getattr(found, part, None)
    return isinstance(found, type) and isinstance(value, found)


def prepared_by_task(task: Any, x: Any, y: Any = None, sample_weight: Any = None) -> tuple[Any, Any, Any]:
    """Data as a KerasHub task's preprocessor makes them: x, y and sample weights for the model behind it.

    Arrays are prepared once, in memory; a `tf.data.Dataset` of batches as it is read, as in the task's `fit`.

    Raises:
        DataError: for data of another kind, for those that the task cannot prepare, and for a preprocessor that draws
            random numbers, such as masks, which the task's `fit` draws anew in each epoch.
    """
    import keras

    if hasattr(x, "element_spec"):
        return x.map(task.preprocess_samples, num_parallel_calls=-1), None, None
    leaves = [leaf for leaf in keras.tree.flatten((x, y, sample_weight)) if leaf is not None]
    if not all(hasattr(leaf, "shape") and len(leaf.shape) for leaf in leaves):
        raise DataError(
            f"The preprocessor of {type(task).__name__} takes arrays, or a tf.data.Dataset of batches. Received: "
            f"{type(x).__name__}. For a list, pass numpy.array(x)."
        )

    def prepared(first: int) -> Any:
        rows = keras.tree.map_structure(
            lambda leaf: _as_given(leaf[first : first + _ROWS_AT_ONCE]), (x, y, sample_weight), none_is_leaf=False
        )
        try:
            found = keras.utils.unpack_x_y_sample_weight(task.preprocess_samples(*rows))
            return keras.tree.map_structure(np.asarray, found, none_is_leaf=False)
        except Exception as error:  # of any preprocessor
            raise DataError(
                f"The preprocessor of {type(task).__name__} cannot prepare the data ({type(error).__name__}: "
                f"{in_one_line(error):.300})."
            ) from error

    pieces = [prepared(first) for first in range(0, min(map(len, leaves)), _ROWS_AT_ONCE)]
    pairs = zip(keras.tree.flatten(pieces[0]), keras.tree.flatten(prepared(0)), strict=True)
    if not all(one is other is None or np.array_equal(one, other) for one, other in pairs):
        raise DataError(
            f"The preprocessor of {type(task).__name__} draws random numbers, which a resumed run could not repeat. "
            "Use tfaccel.fit; or map the preprocessor over a tf.data.Dataset yourself, and give the task with "
            "preprocessor=None."
        )
    return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *pieces, none_is_leaf=False)


def _as_given(rows: Any) -> Any:
    """Rows of texts as a list, which tokenizers take; others as they are."""
    array = np.asarray(rows)
    if array.dtype.kind in "SU" or (array.dtype == object and array.ndim == 1):
        return [one.decode() if isinstance(one, bytes) else str(one) for one in array.tolist()]
    return array
