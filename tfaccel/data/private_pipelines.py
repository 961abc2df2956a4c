"""Private names of `tf.data`, Keras's data adapters, Grain and Hugging Face's `datasets` that tfaccel needs.

Keras's adapters define what `Model.fit` accepts, and how arrays, data frames and class weights become batches. The
private parts of a `tf.data` pipeline say whether its passes are alike, whether a process can read its batches a second
time, and how many rows its batches have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tfaccel.tested_versions import private_part

if TYPE_CHECKING:
    import tensorflow as tf

# Of operations in the functions of a pipeline. Random operations without a state are called `StatelessRandom…`.
_RANDOM = re.compile(
    r"Random(?!Dataset|GammaGrad|IndexShuffle)\w+|(Parameterized)?TruncatedNormal|Multinomial|Rng\w+"
    r"|NonDeterministicInts|Stateful(Uniform|StandardNormal|TruncatedNormal|Random)\w*"
    r"|\w+CandidateSampler|SampleDistortedBoundingBox(V2)?"
)
_CHANGES_VARIABLE = re.compile(r"Assign\w*Variable\w*|ResourceScatter\w*")
_PYTHON = re.compile(r"PyFunc(Stateless)?|EagerPyFunc")
_MISSING = (AttributeError, RuntimeError, TypeError, ValueError)  # if the private names are missing

_IGNORE = 1  # of state outside of the pipeline, in `external_state_policy`
_AUTOTUNED = 16  # elements in a buffer whose size tf.data chooses
_UNKNOWN_SIZE = 256  # of an axis
_ENDLESS = 1 << 48  # the length of a repeated `grain.MapDataset` is `sys.maxsize`, divided by the size of batches
_STRING_BYTES = 1 << 18  # such as an encoded image

_UNSEEDED = "The dataset is shuffled without a seed: write `.shuffle(..., seed=NUMBER)`"
_SAMPLED = "The dataset draws random numbers without a seed: give it one (`seed=NUMBER`)"
_ANY_ORDER = "The order of the dataset's elements depends on the time that they take: write `deterministic=True`"
_SERVICE = "The tf.data service hands out elements in an order of its own: distribute nothing, or only cached files"
_DRAWS = (
    "The dataset's functions draw random numbers ({}): use `tf.random.stateless_uniform` and the like, with seeds that "
    "come from the data, such as the number of the example"
)
_CHANGES = (
    "The dataset's functions change variables ({}), as Keras's random layers do: put these layers into the model, or "
    "use `tf.random.stateless_uniform` and the like"
)

_ALIKE = (
    "Batch Concatenate Filter Map Options ParallelBatch ParallelMap Prefetch Range Skip Take Tensor TensorSlice Zip"
)
_REPEATABLE = frozenset(f"_{name}Dataset" for name in _ALIKE.split())


def known_to_vary(dataset: tf.data.Dataset) -> str:
    """Why another process may read other batches from a dataset, and the change that helps; "" if nothing is known."""
    try:
        return next(_reasons(dataset), "")
    except _MISSING:
        return ""


def draws_without_seed(dataset: tf.data.Dataset) -> str:
    """The change that helps if a dataset is shuffled or sampled without a seed; "" if nothing is known."""
    try:
        return next((reason for reason in _reasons(dataset) if reason in (_UNSEEDED, _SAMPLED)), "")
    except _MISSING:
        return ""


def runs_python(dataset: tf.data.Dataset) -> bool:
    """Whether a dataset runs Python code: a generator, `numpy_function` or `py_function`."""
    try:
        return any(is_python(node) for one in _pipeline(dataset) for node in _nodes(one))
    except _MISSING:
        return False


def buffered_bytes(dataset: tf.data.Dataset) -> float:
    """About how many bytes of elements an iterator over a dataset holds in its buffers; infinity if that is unknown."""
    total = 0.0
    try:
        for one in _pipeline(dataset):
            if type(one).__name__ == "CacheDataset":
                cardinality = int(one.cardinality())
                total += cardinality * _element_bytes(one.element_spec) if cardinality >= 0 else math.inf
            size = getattr(one, "_buffer_size", None)
            if size is not None:
                number = int(size)
                total += (number if number >= 0 else _AUTOTUNED) * _element_bytes(one.element_spec)
    except _MISSING:
        return math.inf
    return total


def pipeline_classes(dataset: tf.data.Dataset) -> str:
    """The transformations of a dataset, from the last to the first: an iterator's state fits only the same ones."""
    return " ".join(type(one).__name__ for one in pipeline_of(dataset))


def pipeline_of(source: Any) -> list[Any]:
    """A dataset, or that of an iterator, and what it is made from, the last first; nothing if that is unknown."""
    import tensorflow as tf

    try:
        return list(_pipeline(source._dataset if isinstance(source, tf.data.Iterator) else source))
    except _MISSING:
        return []


def _pipeline(dataset: tf.data.Dataset) -> Iterator[Any]:
    yield dataset
    for one in dataset._inputs():
        yield from _pipeline(one)


def _reasons(dataset: tf.data.Dataset) -> Iterator[str]:
    if dataset.options().deterministic is False:
        yield _ANY_ORDER
    for one in _pipeline(dataset):
        seeds = [getattr(one, name, None) for name in ("_seed", "_seed2")]
        if all(seed is not None and int(seed) == 0 for seed in seeds):
            yield _UNSEEDED if "Shuffle" in type(one).__name__ else _SAMPLED
        if "DataService" in type(one).__name__:
            yield _SERVICE
        if getattr(one, "_deterministic", None) == "false":
            yield _ANY_ORDER
        nodes = list(_nodes(one))
        # An interleaved dataset itself does not say it, unlike its graph.
        if any(map(is_in_any_order, _get_graph(one) if "ParallelInterleave" in type(one).__name__ else nodes)):
            yield _ANY_ORDER
        for node in nodes:
            if is_random(node):
                yield _DRAWS.format(node.op)
            if _CHANGES_VARIABLE.fullmatch(node.op):
                yield _CHANGES.format(node.op)
        yield from _of_inner_shuffles(nodes)


def _nodes(dataset: Any) -> Iterator[Any]:
    """The operations in the functions of a transformation, and in the functions that these call."""
    for function in dataset._functions():
        yield from get_nodes(function.function.graph.as_graph_def())


def _get_graph(dataset: Any) -> Iterator[Any]:
    """The operations of a whole pipeline, with those of its functions; none if TensorFlow cannot write it down."""
    import tensorflow as tf

    variant = tf.data.experimental.to_variant(dataset)
    try:
        graph = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=_IGNORE)
    except tf.errors.OpError:
        return
    yield from get_nodes(tf.compat.v1.GraphDef.FromString(graph.numpy()))


def get_nodes(graph: tf.compat.v1.GraphDef) -> Iterator[Any]:
    """The operations of a graph, and of the functions that it calls."""
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def is_random(node: Any) -> bool:
    """Whether an operation draws random numbers from a state of its own, or from that of a `tf.random.Generator`."""
    return _RANDOM.fullmatch(node.op) is not None


def is_python(node: Any) -> bool:
    """Whether an operation runs Python code."""
    return _PYTHON.fullmatch(node.op) is not None


def is_in_any_order(node: Any) -> bool:
    """Whether an operation makes a dataset whose order depends on time (`deterministic=False`)."""
    return "Dataset" in node.op and bool(node.attr["deterministic"].s == b"false")


def _of_inner_shuffles(nodes: list[Any]) -> Iterator[str]:
    """Shuffles of datasets that a function makes, as for `flat_map` and `interleave`."""
    import tensorflow as tf

    constants = {node.name: node.attr["value"].tensor for node in nodes if node.op == "Const"}
    for node in nodes:
        if re.fullmatch(r"(Anonymous)?ShuffleDataset\w*|ShuffleAndRepeatDataset\w*", node.op):
            found = [constants.get(name.partition(":")[0]) for name in node.input[2:4]]
            if all(seed is not None and not tf.make_ndarray(seed).any() for seed in found):
                yield _UNSEEDED


def _element_bytes(spec: Any) -> float:
    import tensorflow as tf

    total = 0.0
    for leaf in tf.nest.flatten(spec):
        shape = getattr(leaf, "shape", None)
        dtype = getattr(leaf, "dtype", None)
        if not isinstance(leaf, tf.TensorSpec) or shape is None or shape.rank is None or dtype is None:
            return math.inf
        size = _STRING_BYTES if dtype == tf.string else dtype.size
        total += math.prod(_UNKNOWN_SIZE if axis is None else axis for axis in shape) * size
    return total


def fingerprint(table: Any) -> str:
    """The fingerprint that `datasets` computes from a table and all its transformations; it has no public attribute."""
    return str(private_part(table, "_fingerprint", package="datasets"))


def data_adapter(*data: Any, **options: Any) -> Any:
    """Keras's adapter for arrays, tf.data, PyDataset, generators, torch and grain loaders, including its checks.

    Args:
        *data: x, y and sample_weight; the last ones may be left out.
        **options: batch_size, steps_per_epoch, shuffle and class_weight, as in `Model.fit`; by default None or False.
    """
    from keras.src.trainers import data_adapters

    return private_part(data_adapters, "get_data_adapter")(*data, **options)


def specs_of_batches(batches: list[Any]) -> Any:
    """The specs that Keras's adapters give a dataset whose first batches are known; axes that differ are None.

    Raises:
        ValueError, TypeError: if they are not batches of arrays.
    """
    import keras
    from keras.src.trainers.data_adapters import data_adapter_utils

    merged = private_part(data_adapter_utils, "get_keras_tensor_spec")(batches)
    specs = keras.tree.map_structure(private_part(data_adapter_utils, "convert_to_tf_tensor_spec"), merged)
    return keras.tree.lists_to_tuples(specs)


def tensors_of_batch(batch: Any) -> Any:
    """A batch of a Grain pipeline as `tf.data.Dataset.from_generator` takes it, as in Keras's adapter."""
    import keras
    import tensorflow as tf
    from keras.src.trainers.data_adapters import data_adapter_utils

    def tensor(leaf: Any) -> Any:
        if leaf is None:
            return tf.experimental.Optional.empty(None)
        if private_part(data_adapter_utils, "is_scipy_sparse")(leaf):
            return private_part(data_adapter_utils, "scipy_sparse_to_tf_sparse")(leaf)
        return leaf

    return keras.tree.lists_to_tuples(keras.tree.map_structure(tensor, batch))


def never_ends(pipeline: Any) -> bool:
    """Whether a Grain pipeline is known to repeat its elements without end."""
    dataset = getattr(pipeline, "_dataset", pipeline)  # that of a `DataLoader`
    if hasattr(dataset, "__len__"):
        return len(dataset) >= _ENDLESS
    kind, parents = type(dataset), list(getattr(dataset, "_parents", []))
    if kind.__module__.partition(".")[0] != "grain" or kind.__name__.startswith("Limit"):
        return False
    if kind.__name__.startswith("Repeat") and getattr(dataset, "_num_epochs", 1) is None:
        return True
    return len(parents) == 1 and never_ends(parents[0])


def dense_arrays(adapter: Any) -> Any | None:
    """The inputs of an array adapter as a nest of dense tensors, or None (another adapter, sparse or ragged data)."""
    import keras
    import tensorflow as tf
    from keras.src.trainers.data_adapters import array_data_adapter, array_slicing

    if not isinstance(adapter, private_part(array_data_adapter, "ArrayDataAdapter")):
        return None
    inputs = private_part(adapter, "_inputs")
    for leaf in keras.tree.flatten(inputs):
        kind = type(leaf)
        is_sparse = "sparse" in kind.__module__.lower() or "Sparse" in kind.__name__
        if is_sparse or isinstance(leaf, tf.SparseTensor | tf.RaggedTensor):
            return None
    arrays = private_part(array_slicing, "convert_to_sliceable")(inputs, target_backend="tensorflow")
    arrays = keras.tree.lists_to_tuples(arrays)
    with tf.device("/CPU:0"):  # the rows of a batch are gathered in host memory
        return keras.tree.map_structure(tf.convert_to_tensor, arrays, none_is_leaf=False)


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
    except _MISSING:
        return False


def get_batch_size(dataset: tf.data.Dataset) -> int | None:
    """The batch size of a dataset, whose last batch may be smaller; None if unknown."""
    import tensorflow as tf

    try:
        from tensorflow.python.data.experimental.ops import distribute

        size = int(distribute.compute_batch_size(dataset))
    except (ImportError, AttributeError, TypeError, ValueError, IndexError, tf.errors.OpError):
        return None  # IndexError: its elements are scalars
    return size if size > 0 else None
