"""What a step on one device needs: code that leaves no traces, and layers that run as on replicas.

`ReplicaLayers` are those whose numbers are a replica's: layers that draw random numbers, and BatchNormalization over a
replica's own rows. With the seeds and moving statistics of the replicas, one device computes for each share of the rows
what the replica computes. Where that is not possible, they run in inference mode. The rows of a batch are a nest of
dense, ragged and sparse tensors.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.feeds import Feed
from tfaccel.training.private import private_api
from tfaccel.training.private.private_tensorflow import in_trace, same_trace
from tfaccel.training.proof.detached_step import State
from tfaccel.training.steps.batch_statistics import layers_alike
from tfaccel.training.steps.gather_rows import get_losses
from tfaccel.training.steps.merged_metrics import metrics_in
from tfaccel.training.steps.model_parts import accumulators_of_replicas, get_optimizers, stepping_optimizers
from tfaccel.training.steps.overrides import attributes_of_each, instance_attributes
from tfaccel.training.steps.python_numbers import numbers_not_used_up
from tfaccel.training.steps.replicas import Replicas, split_rows

_MAX_SIZE = 100_000  # of a list or an array that the code of a step may change while it is traced
_PLAIN = (int, float, complex, bool, str, bytes, tuple, type(None))
CALLS_PYTHON = (
    "it calls Python code while it runs (tf.py_function), which would be called once more. If the code has no side "
    "effects, call it by tf.numpy_function(..., stateful=False)"
)
_RATES = ("dropout", "recurrent_dropout", "rate", "stddev")


class CallsPython(Exception):
    """While tracing: a step calls a Python function whenever it runs."""


@contextlib.contextmanager
def without_side_effects(model: keras.Model) -> Iterator[None]:
    """While tracing a step once more: what its Python code prints, writes and keeps is not seen twice.

    Other threads, such as the one that prepares the data of the next epoch, print and call what they like.

    Raises:
        CallsPython: within the block, where the step calls a Python function at each run.
    """

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("stateful") is False:
            return of_numpy(*args, **kwargs)
        raise CallsPython(CALLS_PYTHON)

    traces, of_numpy = same_trace(), tf.numpy_function
    quiet: dict[str, Callable[..., Any]] = dict.fromkeys(("py_function", "numpy_function"), refuse)
    quiet["print"] = lambda *args, **kwargs: None
    record_if = in_trace(traces, lambda condition: contextlib.nullcontext(), tf.summary.record_if)
    with (
        _quiet_output(traces),
        instance_attributes(tf, {name: in_trace(traces, one, getattr(tf, name)) for name, one in quiet.items()}),
        tf.summary.record_if(False),
        instance_attributes(tf.summary, {"record_if": record_if}),
        _kept_attributes(model),
        numbers_not_used_up(),
    ):
        yield


class _Output:
    """Standard output, to which nothing is written where `is_quiet()` holds."""

    def __init__(self, output: Any, is_quiet: Callable[[], bool]) -> None:
        self._output, self.is_quiet = output, is_quiet

    def write(self, text: str) -> int:
        return len(text) if self.is_quiet() else self._output.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


@contextlib.contextmanager
def _quiet_output(traces: Callable[[], bool]) -> Iterator[None]:
    output = _Output(sys.stdout, traces)
    with contextlib.redirect_stdout(None if sys.stdout is None else output):
        try:
            yield
        finally:
            output.is_quiet = lambda: False  # others may keep it


@contextlib.contextmanager
def _kept_attributes(model: keras.Model) -> Iterator[None]:
    """Restores the values, lists, dicts, sets and arrays that the Python code of a step may have changed."""
    values: list[tuple[dict[str, Any], str, Any]] = []
    containers: list[tuple[Any, Any]] = []
    for holder, name in _names_of_user(model):
        value = holder.get(name)
        if type(value) in _PLAIN:
            values.append((holder, name, value))
        else:
            containers += [(one, one.copy()) for one in _containers_in(value)]
    try:
        yield
    finally:
        for holder, name, value in values:
            now = holder.get(name)
            if now is not value and (type(now) in _PLAIN or isinstance(now, tf.Tensor)):
                holder[name] = value
        for value, before in containers:
            _restore(value, before)


def _containers_in(value: Any, depth: int = 3) -> Iterator[Any]:
    """A list, dict, set or array, and those in it; larger ones are data."""
    value = getattr(value, "__wrapped__", value) if isinstance(value, dict) else value  # what TensorFlow has wrapped
    if not isinstance(value, list | dict | set | tuple | np.ndarray) or _size(value) > _MAX_SIZE:
        return
    if not isinstance(value, tuple):
        yield value
    if depth and isinstance(value, list | dict | tuple):
        for one in list(value.values()) if isinstance(value, dict) else value:
            yield from _containers_in(one, depth - 1)


def _size(value: Any) -> int:
    return value.size if isinstance(value, np.ndarray) else len(value)


def _restore(value: Any, before: Any) -> None:
    """Gives a container its contents from before, without Keras's tracking."""
    if isinstance(value, np.ndarray):
        if value.flags.writeable:
            value[...] = before
        return
    kind: Any = next(one for one in (list, dict, set) if isinstance(value, one))
    if list(map(id, value)) != list(map(id, before)) or kind is dict:
        kind.clear(value)
        (kind.extend if kind is list else kind.update)(value, before)


class _Cell(dict[str, Any]):
    """The namespace of one variable of a closure."""

    def __init__(self, name: str, cell: types.CellType) -> None:
        super().__init__({name: cell.cell_contents})
        self._cell = cell

    def get(self, name: str, default: Any = None) -> Any:
        return self._cell.cell_contents

    def __setitem__(self, name: str, value: Any) -> None:
        self._cell.cell_contents = value


def _names_of_user(model: keras.Model) -> Iterator[tuple[dict[str, Any], str]]:
    """Namespaces, and names in them, that the code of a step can refer to: attributes, globals, closures.

    The code is that of the user's layers, losses, metrics and optimizers, and of the functions that it calls.
    """
    optimizers, losses = list(get_optimizers(model).values()), get_losses(model)
    get_parts = [part for optimizer in optimizers for part in stepping_optimizers(optimizer)]
    rates = [private_api.learning_rate_schedule(one) or private_api.learning_rate_function(one) for one in get_parts]
    parts = [*private_api.all_layers(model), *metrics_in(model), *optimizers, *rates, *losses]
    own = [one for one in parts if hasattr(one, "__dict__") and not _is_of_keras(type(one))]
    functions: list[Any] = [one for one in (*losses, *rates) if hasattr(one, "__code__")]
    packages = {_get_package(one) for one in (*map(type, own), *functions)}
    for one in own:
        yield from ((vars(one), name) for name in list(vars(one)) if name not in _names_of_keras())
        for kind in type(one).__mro__:
            functions += [] if _is_of_keras(kind) else vars(kind).values()
    seen: set[int] = set()
    while functions:
        function = functions.pop()
        function = inspect.unwrap(getattr(function, "python_function", function))  # of a `tf.function`
        if not inspect.isfunction(function) or id(function.__code__) in seen or _get_package(function) not in packages:
            continue
        seen.add(id(function.__code__))
        names = [(function.__globals__, name) for name in function.__code__.co_names if name in function.__globals__]
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                names.append((_Cell(name, cell), name))
        functions += [holder.get(name) for holder, name in names]
        yield from names


@functools.cache
def _names_of_keras() -> frozenset[str]:
    """The attributes that Keras itself gives to layers, metrics, losses and optimizers."""
    kinds = (keras.Model, keras.optimizers.SGD, keras.metrics.Mean, keras.losses.MeanSquaredError)
    return frozenset(name for kind in kinds for name in vars(kind()))


def _is_of_keras(defined: Any) -> bool:
    return _get_package(defined) in ("keras", "tensorflow", "tfaccel")


def _get_package(defined: Any) -> str:
    return str(defined.__module__).partition(".")[0]


def accumulated_by_all(model: keras.Model, replicas: Replicas, before: State) -> dict[int, np.ndarray]:
    """What one device would have in the accumulators that it uses: what all replicas have together."""
    of_replicas = accumulators_of_replicas(model)
    parts = [[before[one] for one in replicas.components(of_replicas, i)] for i in range(len(replicas.devices))]
    totals = [np.sum(values, axis=0, dtype=values[0].dtype) for values in zip(*parts, strict=True)]
    firsts = replicas.components(of_replicas, 0)
    return dict(zip(map(id, firsts), replicas.sum_arrays_over_workers(totals), strict=True))


class ReplicaLayers:
    """The layers of a model that run on shares of the rows.

    Attributes:
        components: the variables of each replica that these layers change.
        draws: whether one of the layers draws random numbers.
        runs: whether one of the layers is being traced.
    """

    def __init__(self, model: keras.Model, replicas: Replicas) -> None:
        self._replicas = replicas
        drawing = _drawing_layers(model)
        own = {id(layer): layer for layer in (*normalizing_layers(model)[0], *drawing)}
        self.draws = bool(drawing)
        self._variables = {place: _get_state(layer) for place, layer in own.items()}
        self._layers = list(own.values())
        self._components = {
            place: [replicas.components(variables, i) for i in range(replicas.num_replicas)]
            for place, variables in self._variables.items()
        }
        self.components = [one for parts in self._components.values() for part in parts for one in part]
        self.runs = False

    def __bool__(self) -> bool:
        return bool(self._layers)

    def on_shares(self, data: Any) -> contextlib.AbstractContextManager[None]:
        """While tracing a step of one device on a batch: the layers run on each replica's rows alone."""
        leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None and leaf.shape.rank]
        num_rows, number = tf.shape(leaves[0])[0], self._replicas.num_replicas
        bounds = [split_rows(num_rows, replica, number) for replica in range(number)]
        sizes = tf.stack([stop - start for start, stop in bounds])
        return attributes_of_each((layer, {"call": self._call(layer, num_rows, sizes)}) for layer in self._layers)

    def _call(self, layer: keras.layers.Layer, num_rows: tf.Tensor, sizes: tf.Tensor) -> Callable[..., Any]:
        left, number = layer.call, self._replicas.num_replicas  # with what contexts outside have put in its place
        variables, components = self._variables[id(layer)], self._components[id(layer)]

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.runs:  # in a layer that is on its share already
                return left(*args, **kwargs)
            outputs, leaves = [], keras.tree.flatten((args, kwargs))
            shares = [_shares(value, num_rows, sizes, number) for value in leaves]
            for replica, some in enumerate(zip(*shares, strict=True)):
                some_args, some_kwargs = keras.tree.pack_sequence_as((args, kwargs), list(some))
                running = instance_attributes(self, {"runs": True})
                with private_api.local_variables(variables, components[replica]), running:
                    outputs.append(left(*some_args, **some_kwargs))
            return keras.tree.map_structure(lambda *parts: _joined(parts), *outputs)

        return call


def _drawing_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """The layers that draw from seeds of their own; the recurrent layer for its cell, which draws once a call."""
    layers = [layer for layer in private_api.all_layers(model) if layer is not model]
    of_cells = [one for layer in layers for one in keras.tree.flatten(getattr(layer, "cell", None)) if one is not None]
    cells = {id(one) for cell in of_cells for one in (cell, *getattr(cell, "cells", ()))}
    return [layer for layer in layers if id(layer) not in cells and any(_get_seeds(one) for one in _with_cells(layer))]


def _with_cells(layer: keras.layers.Layer) -> list[Any]:
    cell = getattr(layer, "cell", None)
    return [layer] if cell is None else [layer, cell, *getattr(cell, "cells", ())]


def _get_seeds(layer: Any) -> list[keras.Variable]:
    """The seeds that a layer draws from; none where its rates are all 0."""
    rates = [value for name in _RATES if isinstance(value := getattr(layer, name, None), int | float)]
    if rates and not any(rates):
        return []
    return [value.state for value in vars(layer).values() if isinstance(value, keras.random.SeedGenerator)]


def _get_state(layer: keras.layers.Layer) -> list[keras.Variable]:
    """What a layer's call changes: seeds and moving statistics; gradients belong to the weights of one device."""
    seeds = [seed for one in _with_cells(layer) for seed in _get_seeds(one)]
    moving = layer.non_trainable_variables if isinstance(layer, keras.layers.BatchNormalization) else []
    return list({id(one): one for one in (*seeds, *moving)}.values())


def _shares(value: Any, num_rows: tf.Tensor, sizes: tf.Tensor, number: int) -> Sequence[Any]:
    """Each replica's part of a tensor whose entries are those of rows of the batch; anything else as it is."""
    if not (isinstance(value, tf.Tensor) and value.shape.rank):
        return [value] * number
    return tf.split(value, sizes * tf.shape(value)[0] // num_rows, num=number)


def _joined(parts: Sequence[Any]) -> Any:
    if not (isinstance(parts[0], tf.Tensor) and parts[0].shape.rank):
        return parts[0]
    return tf.concat(parts, axis=0)


def normalizing_layers(model: keras.Model) -> tuple[list[keras.layers.Layer], list[keras.layers.Layer]]:
    """BatchNormalization layers: those whose statistics, as planned, are those of a replica's own rows; and all."""
    alike = {id(layer) for layer in layers_alike(model)}
    found = [one for one in private_api.all_layers(model) if isinstance(one, keras.layers.BatchNormalization)]
    return [one for one in found if id(one) not in alike], found


def draws(layer: keras.layers.Layer) -> bool:
    """Whether a layer draws random numbers in training, and none in inference mode."""
    draws = any(isinstance(value, keras.random.SeedGenerator) for value in vars(layer).values())
    return draws and "training" in inspect.signature(layer.call).parameters


def weights_of_each_replica(model: keras.Model) -> list[keras.Variable]:
    """What replicas hold values of their own of: moving statistics, as planned, and weights of layers that draw."""
    layers = [one for one in private_api.all_layers(model) if not isinstance(one, keras.Model)]
    drawing = [one for one in layers if any(map(draws, private_api.all_layers(one)))]
    return [weight for layer in (*normalizing_layers(model)[0], *drawing) for weight in layer.weights]


def in_inference_mode(layers: Iterable[keras.layers.Layer]) -> contextlib.AbstractContextManager[None]:
    """Within the block, these layers run in inference mode, whatever mode they are called in."""
    return attributes_of_each((layer, {"call": _inference_call(layer)}) for layer in layers)


def _inference_call(layer: keras.layers.Layer) -> Callable[..., Any]:
    left = layer.call  # with what contexts outside of this one have put in its place
    signature = inspect.signature(type(layer).call)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(layer, *args, **kwargs)
        bound.arguments["training"] = False
        return left(*bound.args[1:], **bound.kwargs)

    return call


def some_rows(batch: Any, first: int, num_rows: int) -> Any:
    """Rows of a batch of dense, ragged or sparse tensors, from the first one given."""

    def of(leaf: Any) -> Any:
        if leaf is None or not leaf.shape.rank:
            return leaf
        if isinstance(leaf, tf.SparseTensor):
            size = [num_rows, *leaf.dense_shape.numpy()[1:]]
            return tf.sparse.slice(leaf, [first] + [0] * (leaf.shape.rank - 1), size)
        return leaf[first : first + num_rows]

    return keras.tree.map_structure(of, batch)


def rows_of_share(batch: Any, share: int, num_shares: int) -> Any:
    """A replica's rows of a batch; of each dense tensor the same fraction."""

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor) or not leaf.shape.rank:
            return leaf
        first, stop = split_rows(int(leaf.shape[0]), share, num_shares)
        return leaf[first:stop]

    return keras.tree.map_structure(of, batch)


def get_specs(data: Any, known: Any = None) -> Any:
    """The specs of a batch.

    Args:
        known: the specs of all batches, whose unknown sizes stay unknown; None takes the sizes of this one.
    """
    leaves, others = tf.nest.flatten(data), tf.nest.flatten(known)
    if len(others) != len(leaves):
        others = [None] * len(leaves)
    return tf.nest.pack_sequence_as(data, list(map(_get_spec, leaves, others)))


def _get_spec(leaf: Any, known: Any) -> Any:
    spec = None if leaf is None else tf.type_spec_from_value(leaf)
    if spec is None or not spec.shape.rank or not isinstance(known, tf.TypeSpec) or known.shape.rank != spec.shape.rank:
        return spec
    shape = [None if of_all is None else size for size, of_all in zip(spec.shape, known.shape, strict=True)]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)


def reversed_rows(data: Any, num_shares: int = 1) -> Any:
    """A batch in reverse order, or with the rows of each replica's share in reverse order."""

    def order_of(num_rows: int) -> tf.Tensor:
        shares = (split_rows(num_rows, share, num_shares) for share in range(num_shares))
        return tf.concat([tf.range(int(stop) - 1, int(start) - 1, -1, tf.int64) for start, stop in shares], axis=0)

    def of(leaf: Any) -> Any:
        if leaf is None or not leaf.shape.rank:
            return leaf
        order = order_of(int(leaf.shape[0]))
        if isinstance(leaf, tf.SparseTensor):
            rows, *others = tf.unstack(leaf.indices, axis=1)
            indices = tf.stack([tf.gather(order, rows), *others], axis=1)  # the order is its own inverse
            return tf.sparse.reorder(tf.SparseTensor(indices, leaf.values, leaf.dense_shape))
        return tf.gather(leaf, order)

    return keras.tree.map_structure(of, data)


def every_nth_row(data: Any, n: int) -> Any:
    """Every n-th row of a batch, or as many of the first ones where some are sparse."""
    has_sparse = any(isinstance(leaf, tf.SparseTensor) for leaf in keras.tree.flatten(data))
    if has_sparse:
        return some_rows(data, 0, max(1, get_num_rows(data) // n))
    return keras.tree.map_structure(lambda leaf: leaf[::n] if leaf is not None and leaf.shape.rank else leaf, data)


def get_num_rows(data: Any) -> int:
    """The rows of a batch."""
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None and leaf.shape.rank]
    return int(leaves[0].shape[0]) if leaves else 0


def only_batch(data: Any, spec: Any) -> tf.data.Dataset:
    """A dataset of a single batch, of which only those sizes are known while tracing that `spec` has."""
    specs = tf.nest.flatten(get_specs(data, spec))

    def relaxed(leaf: Any, leaf_spec: Any) -> Any:
        if not isinstance(leaf, tf.Tensor) or leaf_spec.shape == leaf.shape:
            return leaf
        return tf.compat.v1.placeholder_with_default(leaf, leaf_spec.shape)

    def batch(*parts: Any) -> Any:
        given = parts if isinstance(data, tuple) else parts[0]
        return tf.nest.pack_sequence_as(given, list(map(relaxed, tf.nest.flatten(given), specs)))

    return tf.data.Dataset.from_tensors(data).map(batch)


def whole_batch(feed: Feed, replicas: Replicas) -> Any:
    """The next global batch; workers that read only their own rows exchange them."""
    data = feed.peek()
    if getattr(feed.batches, "num_global_rows", None) is None:
        return data

    def of_all(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor) or not leaf.shape.rank:
            return leaf

        def share(context: tf.distribute.ReplicaContext) -> tf.Tensor:
            is_first = context.replica_id_in_sync_group == replicas.first_replica
            return leaf if is_first else leaf[:0]

        values = replicas.strategy.experimental_distribute_values_from_function(share)
        return replicas.strategy.gather(values, axis=0)

    return keras.tree.map_structure(of_all, data)
