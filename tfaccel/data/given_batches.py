"""Data that come as batches, as users give them: a `tf.data.Dataset`, a `PyDataset` or a Grain pipeline."""

from __future__ import annotations

import itertools
import weakref
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.grain_batches import grain_dataset, saved_state
from tfaccel.data.private_pipelines import (
    data_adapter,
    get_batch_size,
    known_to_vary,
    never_ends,
    passes_are_alike,
    runs_python,
    specs_of_batches,
)
from tfaccel.errors import DataError
from tfaccel.records import quoted

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

DATASET = "tf.data.Dataset"  # what a `GivenDataset` is called

# Dataset -> its passes in this process: iterators of a `tf.data.Dataset`, epochs of a `PyDataset`.
_times_begun: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


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
        self.prepares_ahead = passes_are_alike(dataset)  # the next epoch may be prepared during training
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
    def identity(self) -> dict[str, Any]:
        """What must not change when a run is resumed, as far as it is known without reading the data."""
        text = f"{self._dataset.element_spec} x {self.num_batches}"
        return {"data": text, "class_weight": named_weights(self._class_weight)}

    def __call__(self, global_batch_size: int, *, seed: int, epoch: int) -> tf.data.Dataset:
        """The batches of an epoch; see `tfaccel.Workload`."""
        del seed
        _check_size(self, global_batch_size)
        if not self.prepares_ahead:  # the order depends on the iterators that were created before
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
        self._first_leaves = _leaves(self._first)
        self.batch_size = int(self._first_leaves[0].shape[0])

    @property
    def identity(self) -> dict[str, Any]:
        """What must not change when a run is resumed, as far as the first batch shows."""
        text = f"{type(self._dataset).__qualname__} x {self.num_batches} {_checksum(self._first_leaves)}"
        return {"data": text, "shuffle": self._shuffle, "class_weight": named_weights(self._class_weight)}

    def __call__(self, global_batch_size: int, *, seed: int, epoch: int, start_step: int = 0) -> tf.data.Dataset:
        """The batches of an epoch; see `tfaccel.Workload`."""
        import keras

        _check_size(self, global_batch_size)
        begun = _times_begun.get(self._dataset, 0)
        own, plain = type(self._dataset), keras.utils.PyDataset
        has_hooks = own.on_epoch_end is not plain.on_epoch_end or own.on_epoch_begin is not plain.on_epoch_begin
        if epoch < begun - 1 and has_hooks:  # its batches may change from epoch to epoch
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

    def validation(self, global_batch_size: int) -> tf.data.Dataset:
        """All batches, in order."""
        del global_batch_size
        return self._batches(np.arange(self.num_batches))

    def _batches(self, numbers: np.ndarray) -> tf.data.Dataset:
        import keras
        import tensorflow as tf

        flat = self._first_leaves

        def batch(number: Any) -> list[np.ndarray]:
            found = _leaves(_as_tuple(self._dataset[int(number)]))
            return [np.asarray(leaf, like.dtype) for leaf, like in zip(found, flat, strict=True)]

        def fetched(number: tf.Tensor) -> Any:
            tensors = tf.numpy_function(batch, [number], [leaf.dtype for leaf in flat])
            for tensor, like in zip(tensors, flat, strict=True):
                tensor.set_shape([None, *like.shape[1:]])
            rest = iter(tensors)
            return keras.tree.map_structure(lambda _: next(rest), self._first, none_is_leaf=False)

        workers = max(1, self._dataset.workers)
        batches = tf.data.Dataset.from_tensor_slices(numbers).map(fetched, num_parallel_calls=workers)
        return _weighted(batches, self._class_weight)


class GivenGrain:
    """A `grain.MapDataset`, `grain.IterDataset` or `grain.DataLoader` of batches, in its own order in each epoch.

    An epoch is one pass. A resumed run continues with the state of the pipeline's iterator.

    Args:
        pipeline: yields (x, y) or (x, y, sample_weight).
        shuffle: has no effect, as in `Model.fit`.
        class_weight: class -> its weight in the loss.

    Raises:
        DataError: if the pipeline is empty or known to be infinite, or does not yield batches.
    """

    what = "Grain pipeline"
    num_examples: int | None = None
    prepares_ahead = False  # the processes of a second pass would wait with full buffers until the first one ends
    not_resumable = ""

    def __init__(self, pipeline: Any, *, shuffle: Any = True, class_weight: Any = None) -> None:

        del shuffle
        self._pipeline = pipeline
        self._class_weight = class_weight
        if never_ends(pipeline):
            raise DataError(
                "The Grain pipeline is infinite. Pass one epoch: leave out `.repeat()`, or give it and an IndexSampler "
                "`num_epochs`."
            )
        iterator = iter(pipeline)
        self.runs_python = saved_state(iterator) is None
        firsts = list(itertools.islice(iterator, 2))
        if not firsts:
            raise DataError("The Grain pipeline is empty.")
        try:
            self._spec = specs_of_batches(firsts)
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(
                f"The Grain pipeline does not yield batches of numbers: {str(error).rstrip('.')}. Map its elements to "
                "(x, y) of arrays, then `.batch(NUMBER)`; in a DataLoader, grain.transforms.Batch is the last one."
            ) from error
        self._first = _leaves(firsts[0])
        self.batch_size = int(self._first[0].shape[0])

    @property
    def identity(self) -> dict[str, Any]:
        """What must not change when a run is resumed, as far as the first batch shows."""
        text = f"{self._spec} {_checksum(self._first)}"
        return {"data": text, "class_weight": named_weights(self._class_weight)}

    def __call__(self, global_batch_size: int, *, seed: int, epoch: int) -> tf.data.Dataset:
        """The batches of an epoch; see `tfaccel.Workload`."""
        del seed, epoch
        _check_size(self, global_batch_size)
        return self.validation(global_batch_size)

    def validation(self, global_batch_size: int) -> tf.data.Dataset:
        """All batches, in their own size."""
        del global_batch_size
        return _weighted(grain_dataset(self._pipeline, self._spec), self._class_weight)


def _leaves(batch: Any) -> list[Any]:
    """The components of a batch without None, in the order of Keras."""
    import keras

    return [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]


def _checksum(leaves: list[Any]) -> int:
    checksum = 0
    for leaf in leaves:
        array = np.asarray(leaf)
        checksum = checksum if array.dtype == object else zlib.crc32(np.ascontiguousarray(array).tobytes(), checksum)
    return checksum


def _check_size(given: GivenDataset | GivenPyDataset | GivenGrain, global_batch_size: int) -> None:
    size = given.batch_size
    if size not in (None, global_batch_size):
        raise DataError(
            f"The {given.what} has batches of {size} rows, but {global_batch_size} are asked for. Make it with batches "
            f"of {global_batch_size}, or leave the batch size at {size} (without accumulation)."
        )


def _weighted(dataset: tf.data.Dataset, class_weight: Any) -> tf.data.Dataset:
    """The batches, with sample weights if classes have weights."""
    return dataset if class_weight is None else data_adapter(dataset, class_weight=class_weight).get_tf_dataset()


def _as_tuple(batch: Any) -> tuple[Any, ...]:
    return tuple(batch) if isinstance(batch, list | tuple) else (batch,)


def _array(leaf: Any) -> Any:
    import keras

    array = np.asarray(leaf)
    return array.astype(keras.config.floatx()) if array.dtype == np.float64 else array


def named_weights(class_weight: Any) -> Any:
    """The weights of classes as JSON values.

    Raises:
        DataError: if it is no dict of numbers.
    """
    try:
        if any(int(name) != name for name in class_weight or ()):
            raise ValueError
        return class_weight and {str(int(name)): float(weight) for name, weight in class_weight.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(
            "`class_weight` must be a dict of numbers by the index of a class, such as {0: 1.0, 1: 5.0}, or None. "
            f"Received: {quoted(class_weight)}."
        ) from error
