"""Data in the forms that `Model.fit` accepts: arrays, a `tf.data.Dataset` or a `PyDataset`, as a workload's data.

They are recognized, validated and identified without importing TensorFlow.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import operator
import sys
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.epochs import random_order, row_batches
from tfaccel.data.private_pipelines import (
    data_adapter,
    dense_arrays,
    get_batch_size,
    known_to_vary,
    passes_are_alike,
    runs_python,
)
from tfaccel.errors import DataError

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

ACCEPTED = "arrays (or dictionaries and lists of arrays), data frames, a tf.data.Dataset, or a keras.utils.PyDataset"
DATASET = "tf.data.Dataset"  # what a `GivenDataset` is called

# Dataset -> its passes in this process: iterators of a `tf.data.Dataset`, epochs of a `PyDataset`.
_times_begun: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def given_data(x: Any, y: Any = None, sample_weight: Any = None, **options: Any) -> Any:
    """Wraps data of any form that `Model.fit` accepts, to make batches of them.

    Args:
        x, y, sample_weight: as in `Model.fit`.
        **options: `shuffle` and `class_weight`, as in `Model.fit`.

    Returns:
        A `GivenArrays`, `GivenDataset` or `GivenPyDataset`, which serves as a workload's `train_data`; its method
        `validation` serves as the workload's `validation_data`.

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
        self._shuffle = shuffle
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
        train, held_out = (
            [_mapped(part, operator.itemgetter(rows)) for part in self._parts.values()]
            for rows in (slice(stop), slice(stop, None))
        )
        return GivenArrays(*train, shuffle=self._shuffle, class_weight=self._class_weight), GivenArrays(*held_out)

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """What must not change when a run is resumed: a checksum of all rows, and the settings of the batches."""
        checksum = checksum_of_rows((name, leaf) for name, part in self._parts.items() for leaf in leaves(part))
        return {"data": checksum, "shuffle": self._shuffle, "class_weight": _named(self._class_weight)}

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
        if not self._shuffle:
            return np.arange(self.num_examples)
        return random_order(self.num_examples, global_batch_size, shuffle=self._shuffle, seed=seed)(epoch)

    def _batches(self, passes: list[np.ndarray], global_batch_size: int, *, static: bool) -> Any:
        import keras
        import tensorflow as tf

        arrays = self.tensors

        def gathered(rows: Any) -> Any:
            return keras.tree.map_structure(lambda a: None if a is None else tf.gather(a, rows), arrays)

        with tf.device("/CPU:0"):
            batches = [row_batches(rows, global_batch_size, drop_remainder=static) for rows in passes]
            joined = functools.reduce(lambda some, others: some.concatenate(others), batches)
            return joined.map(gathered, num_parallel_calls=tf.data.AUTOTUNE)

    @functools.cached_property
    def tensors(self) -> Any:
        """The batches' structure with all rows in each tensor, converted by Keras's data adapter."""
        try:
            adapter = data_adapter(
                *self._parts.values(),
                batch_size=1,
                steps=None,
                shuffle=False,
                class_weight=self._class_weight,
            )
            return dense_arrays(adapter)
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
        hint = f" Write np.array({name})." if isinstance(value, int | float | bool | str) else ""
        raise DataError(f"{name} must be {ACCEPTED}. Received: {kind}{' in a list' if hint else ''}.{hint}")
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


def _is_a(package: str, path: str, value: Any) -> bool:
    """Whether a value is an instance of a package's class; False if the package is not imported."""
    found: Any = sys.modules.get(package)
    for part in path.split("."):
        found = getattr(found, part, None)
    return isinstance(found, type) and isinstance(value, found)


class GivenDataset:
    """A `tf.data.Dataset` of batches, iterated over once in each epoch, in the order of `Model.fit`.

    The order of a seeded shuffle depends on how many iterators were created before. As many are created as by
    `Model.fit`, so that an epoch has the same batches as there, also in a resumed run.

    Args:
        dataset: yields (x, y) or (x, y, sample_weight).
        shuffle: has no effect, as in `Model.fit`.
        class_weight: as in `Model.fit`.

    Raises:
        DataError: if the dataset is infinite or empty.
    """

    what = DATASET
    num_examples: int | None = None

    def __init__(self, dataset: tf.data.Dataset, *, shuffle: Any = True, class_weight: Any = None) -> None:
        import tensorflow as tf

        del shuffle
        self._class_weight = class_weight
        self._source = dataset
        self._dataset = _weighted(dataset, class_weight)
        self._is_alike = passes_are_alike(dataset)
        self.num_batches = int(dataset.cardinality())
        if self.num_batches == tf.data.INFINITE_CARDINALITY:
            raise DataError(
                "The dataset is infinite. Pass one epoch, without `.repeat()`, or limit it to the batches of an epoch: "
                "`.take(NUMBER)`."
            )
        if self.num_batches == 0:
            raise DataError("The dataset is empty.")
        self.batch_size = get_batch_size(dataset)
        self.not_resumable = known_to_vary(dataset)
        self.runs_python = runs_python(dataset)

    @property
    def prepares_ahead(self) -> bool:
        """Whether the next epoch may be prepared during training."""
        return self._is_alike

    @property
    def identity(self) -> dict[str, Any]:
        """What must not change when a run is resumed, as far as it is known without reading the data."""
        text = f"{self._dataset.element_spec} x {self.num_batches}"
        return {"data": text, "class_weight": _named(self._class_weight)}

    def __call__(self, global_batch_size: int, *, seed: int, epoch: int) -> tf.data.Dataset:
        """The batches of an epoch; see `tfaccel.Workload`."""
        del seed
        _check_size(self, global_batch_size)
        if not self._is_alike:
            wanted = epoch * (2 if self.num_batches > 0 else 1)
            made = _times_begun.get(self._source, 0)
            if wanted < made:
                raise DataError(
                    "The dataset has been iterated over before in this process, which changes the order of its "
                    "shuffle. Create a new dataset for each run."
                )
            for _ in range(wanted - made):
                iter(self._dataset)
            _times_begun[self._source] = wanted + 1
        return self._dataset

    def validation(self, global_batch_size: int) -> tf.data.Dataset:
        """All batches, in their own size."""
        del global_batch_size
        return self._dataset


class GivenPyDataset:
    """A `keras.utils.PyDataset`, whose batches are shuffled as a whole, in an order determined by seed and epoch.

    `workers` threads call its `__getitem__`. `on_epoch_begin` and `on_epoch_end` are called as in `Model.fit`, also
    for the epochs that a resumed run has completed.

    Args:
        dataset: yields (x, y) or (x, y, sample_weight) by index.
        shuffle: whether to shuffle the order of the batches in each epoch.
        class_weight: as in `Model.fit`.

    Raises:
        DataError: if its number of batches is unknown.
    """

    what = "PyDataset"
    num_examples: int | None = None
    prepares_ahead = False
    not_resumable = ""

    def __init__(self, dataset: keras.utils.PyDataset, *, shuffle: bool = True, class_weight: Any = None) -> None:
        import keras

        self._dataset = dataset
        self._shuffle = shuffle
        self._class_weight = class_weight
        if dataset.num_batches is None:
            raise DataError("The PyDataset does not define how many batches an epoch has. Give it `__len__`.")
        self.num_batches = int(dataset.num_batches)
        if self.num_batches < 1:
            raise DataError("The PyDataset is empty.")
        self._first = keras.tree.map_structure(_array, _as_tuple(dataset[0]))
        first = [leaf for leaf in keras.tree.flatten(self._first) if leaf is not None]
        self.batch_size = int(first[0].shape[0])

    @property
    def identity(self) -> dict[str, Any]:
        """What must not change when a run is resumed, as far as the first batch shows."""
        import keras

        checksum = 0
        for leaf in keras.tree.flatten(self._first):
            checksum = checksum if leaf is None else zlib.crc32(np.ascontiguousarray(leaf).tobytes(), checksum)
        text = f"{type(self._dataset).__qualname__} x {self.num_batches} {checksum}"
        return {"data": text, "shuffle": self._shuffle, "class_weight": _named(self._class_weight)}

    def __call__(self, global_batch_size: int, *, seed: int, epoch: int, start_step: int = 0) -> tf.data.Dataset:
        """The batches of an epoch; see `tfaccel.Workload`."""
        _check_size(self, global_batch_size)
        begun = _times_begun.get(self._dataset, 0)
        if epoch < begun - 1 and self._has_hooks:
            raise DataError(
                "The PyDataset has been iterated over before in this process. Create a new one for each run."
            )
        for _ in range(begun, epoch + 1):
            self._dataset.on_epoch_end()  # before the first epoch too, as in Keras
            self._dataset.on_epoch_begin()
            _times_begun[self._dataset] = epoch + 1
        numbers = np.arange(self.num_batches)
        if self._shuffle:
            numbers = np.random.default_rng([seed, epoch]).permutation(numbers)
        return self._batches(numbers[start_step:])

    @property
    def _has_hooks(self) -> bool:
        """Whether the batches may change from epoch to epoch."""
        import keras

        own, plain = type(self._dataset), keras.utils.PyDataset
        return own.on_epoch_end is not plain.on_epoch_end or own.on_epoch_begin is not plain.on_epoch_begin

    def validation(self, global_batch_size: int) -> tf.data.Dataset:
        """All batches, in order."""
        del global_batch_size
        return self._batches(np.arange(self.num_batches))

    def _batches(self, numbers: np.ndarray) -> tf.data.Dataset:
        import keras
        import tensorflow as tf

        flat = [leaf for leaf in keras.tree.flatten(self._first) if leaf is not None]

        def batch(number: Any) -> list[np.ndarray]:
            found = [leaf for leaf in keras.tree.flatten(_as_tuple(self._dataset[int(number)])) if leaf is not None]
            return [np.asarray(leaf, like.dtype) for leaf, like in zip(found, flat, strict=True)]

        def fetched(number: tf.Tensor) -> Any:
            tensors = tf.numpy_function(batch, [number], [leaf.dtype for leaf in flat])
            for tensor, like in zip(tensors, flat, strict=True):
                tensor.set_shape([None, *like.shape[1:]])
            rest = iter(tensors)
            return keras.tree.map_structure(lambda leaf: None if leaf is None else next(rest), self._first)

        workers = max(1, self._dataset.workers)
        batches = tf.data.Dataset.from_tensor_slices(numbers).map(fetched, num_parallel_calls=workers)
        return _weighted(batches, self._class_weight)


def _check_size(given: GivenDataset | GivenPyDataset, global_batch_size: int) -> None:
    size = given.batch_size
    if size not in (None, global_batch_size):
        raise DataError(
            f"The {given.what} has batches of {size} rows, but {global_batch_size} are asked for. Make it with batches "
            f"of {global_batch_size}, or leave the batch size at {size} (without accumulation)."
        )


def _weighted(dataset: tf.data.Dataset, class_weight: Any) -> tf.data.Dataset:
    """The batches, with sample weights if classes have weights."""
    if class_weight is None:
        return dataset
    adapter = data_adapter(dataset, batch_size=None, steps=None, shuffle=False, class_weight=class_weight)
    return adapter.get_tf_dataset()


def _as_tuple(batch: Any) -> tuple[Any, ...]:
    return tuple(batch) if isinstance(batch, list | tuple) else (batch,)


def _array(leaf: Any) -> Any:
    import keras

    array = np.asarray(leaf)
    return array.astype(keras.config.floatx()) if array.dtype == np.float64 else array


def _named(class_weight: Any) -> Any:
    return class_weight and {str(name): float(weight) for name, weight in class_weight.items()}
