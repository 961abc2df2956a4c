"""Private names of Keras's data adapters and of `tf.data` that tfaccel needs.

Keras's adapters define what `Model.fit` accepts, and how arrays, data frames and class weights become batches. The
transformations of a `tf.data.Dataset` show whether its passes are alike, and how many rows its batches have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfaccel.tested_versions import private_part

if TYPE_CHECKING:
    import tensorflow as tf

_REPEATABLE = frozenset(
    f"_{name}Dataset"
    for name in (
        "Batch",
        "Concatenate",
        "Filter",
        "Map",
        "Options",
        "ParallelBatch",
        "ParallelMap",
        "Prefetch",
        "Range",
        "Skip",
        "Take",
        "Tensor",
        "TensorSlice",
        "Zip",
    )
)


def data_adapter(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None,
    steps: int | None,
    shuffle: Any,
    class_weight: dict[int, float] | None,
) -> Any:
    """Keras's adapter for arrays, tf.data, PyDataset, generators, torch and grain loaders, including its checks."""
    from keras.src.trainers import data_adapters

    return private_part(data_adapters, "get_data_adapter")(
        x=x,
        y=y,
        sample_weight=sample_weight,
        batch_size=batch_size,
        steps_per_epoch=steps,
        shuffle=shuffle,
        class_weight=class_weight,
    )


def dense_arrays(adapter: Any) -> Any | None:
    """The inputs of an array adapter as a nest of dense tensors, or None (another adapter, sparse or ragged data)."""
    import keras
    import tensorflow as tf
    from keras.src.trainers.data_adapters import array_data_adapter, array_slicing

    if not isinstance(adapter, private_part(array_data_adapter, "ArrayDataAdapter")):
        return None
    inputs = private_part(adapter, "_inputs")
    if any(_is_sparse_or_ragged(leaf) for leaf in keras.tree.flatten(inputs)):
        return None
    arrays = private_part(array_slicing, "convert_to_sliceable")(inputs, target_backend="tensorflow")
    arrays = keras.tree.lists_to_tuples(arrays)
    with tf.device("/CPU:0"):  # the rows of a batch are gathered in host memory
        return keras.tree.map_structure(lambda a: None if a is None else tf.convert_to_tensor(a), arrays)


def _is_sparse_or_ragged(value: Any) -> bool:
    import tensorflow as tf

    if isinstance(value, tf.SparseTensor | tf.RaggedTensor):
        return True
    return "sparse" in type(value).__module__.lower() or "Sparse" in type(value).__name__


def validation_split(arrays: Any, fraction: float) -> tuple[Any, Any]:
    """The first rows for training and the last `fraction` for validation, split as by `Model.fit`."""
    from keras.src.trainers.data_adapters import array_slicing

    train, validation = private_part(array_slicing, "train_validation_split")(arrays, validation_split=fraction)
    return train, validation


def passes_are_alike(dataset: tf.data.Dataset) -> bool:
    """Whether separate iterators over a dataset and one iterator that repeats it are equivalent.

    True for arrays, batches and stateless functions, and for a shuffle without a seed, whose order is arbitrary. False
    if unknown: for Python code, files, caches, random numbers and variables, and if the private names are missing.
    """
    import tensorflow as tf

    try:
        known = type(dataset).__name__ in _REPEATABLE
        if type(dataset).__name__ == "_ShuffleDataset":
            known = int(dataset._seed) == int(dataset._seed2) == 0
        graphs = [function.function.graph for function in dataset._functions()]
        outer = [tensor.dtype for graph in graphs for tensor, _ in graph.captures]
        stateful = [
            operation for graph in graphs for operation in graph.get_operations() if operation.op_def.is_stateful
        ]
        known = known and not stateful and tf.resource not in outer and tf.variant not in outer
        return known and all(passes_are_alike(one) for one in dataset._inputs())
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False


def get_batch_size(dataset: tf.data.Dataset) -> int | None:
    """The batch size of a dataset, whose last batch may be smaller; None if unknown."""
    import tensorflow as tf

    try:
        from tensorflow.python.data.experimental.ops import distribute

        size = int(distribute.compute_batch_size(dataset))
    except (ImportError, AttributeError, TypeError, ValueError, tf.errors.OpError):
        return None
    return size if size > 0 else None
