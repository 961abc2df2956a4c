"""Turns the data passed to `fit`, `evaluate` and `predict` into a source of global batches."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data import private_pipelines
from tfaccel.data.given_datasets import order_of_keras, random_order
from tfaccel.data.sources import ArraySource, DatasetSource, IteratorSource
from tfaccel.errors import DataError, WorkloadError
from tfaccel.training.private import private_api, private_tensorflow
from tfaccel.training.steps.model_parts import has_own_train_step
from tfaccel.training.steps.replica_state import get_replicas
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.workers.lone_worker import refuse_lone_worker

Source = ArraySource | IteratorSource

_MAX_SEED = 2**31 - 1
_UNKNOWN_TYPE = "Unrecognized data type"  # how Keras's message begins


def make_source(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    replicas: Replicas,
    batch_size: int | None = None,
    steps: int | None = None,
    **others: Any,
) -> Source:
    """Creates a source of global batches from any data that `Model.fit` accepts.

    Args:
        x, y, sample_weight, batch_size: as in `Model.fit`; the batch size is global.
        replicas: the replicas that share each batch.
        steps: `steps_per_epoch` (or `validation_steps`, `steps`).
        others: `shuffle`, `class_weight`, `num_epochs`, the model's `steps_per_execution`, and `order_seed`, for arrays
            that are shuffled without a global seed.

    Raises:
        DataError: without data, and for data of an unknown type; or if the dataset is already distributed: its global
            batches cannot be recovered.
        WorkloadError: for a batch size below 1.
    """
    if x is None or (isinstance(x, list | tuple | dict) and not keras.tree.flatten(x)):
        raise DataError(f"Received no data: x={x}. Pass arrays, a tf.data.Dataset or a keras.utils.PyDataset as x.")
    if batch_size is not None and batch_size < 1:
        raise WorkloadError(f"`batch_size` must be a whole number of at least 1. Received: batch_size={batch_size}.")
    if isinstance(x, tf.distribute.DistributedDataset):
        raise DataError(
            "Received a DistributedDataset. Pass the tf.data.Dataset of global batches that it was made from: tfaccel "
            "splits each batch over the replicas."
        )
    steps = _capped(steps) or None  # Keras treats 0 as None
    shuffle, steps_per_execution = others.get("shuffle", False), others.get("steps_per_execution", 1)
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "steps": steps,
        "shuffle": shuffle,
        "class_weight": others.get("class_weight"),
    }
    try:
        adapter = private_pipelines.data_adapter(x, y, sample_weight, **options)
    except ValueError as error:
        if not str(error).startswith(_UNKNOWN_TYPE):
            raise
        raise DataError(_unknown_type({"x": x, "y": y, "sample_weight": sample_weight})) from error
    arrays = private_pipelines.dense_arrays(adapter)
    num_epochs = others.get("num_epochs", 1)
    if isinstance(x, tf.data.Dataset) and num_epochs > 1 and steps is None and adapter.num_batches:
        dataset = adapter.get_tf_dataset()
        if private_pipelines.passes_are_alike(dataset):  # one iterator for all epochs: the next starts at once
            return IteratorSource(
                dataset, num_batches=adapter.num_batches, num_epochs=num_epochs, steps_per_execution=steps_per_execution
            )
    if arrays is None:
        return DatasetSource(adapter, steps_per_epoch=steps, steps_per_execution=steps_per_execution)
    seed = others.get("order_seed")
    order = _order_of_rows(arrays, adapter.batch_size, shuffle, replicas, seed) if shuffle else None
    return ArraySource(
        arrays, global_batch_size=adapter.batch_size, order=order, steps=steps, steps_per_execution=steps_per_execution
    )


def _unknown_type(given: dict[str, Any]) -> str:
    """The message for data that holds something else than arrays; Keras's names x whichever it is."""
    for name, value in given.items():
        for leaf in keras.tree.flatten(value):
            if leaf is not None and not hasattr(leaf, "shape"):
                hint = f" For a list of numbers, pass numpy.array({name})." if isinstance(value, list | tuple) else ""
                kinds = "arrays, tensors or DataFrames" + (", a tf.data.Dataset or a PyDataset" if name == "x" else "")
                return f"{_UNKNOWN_TYPE}: `{name}` must be {kinds}. Received: {leaf!r:.100} of {type(leaf)}.{hint}"
    return f"{_UNKNOWN_TYPE}: x={given['x']!r:.200} of {type(given['x'])}."


def checked_callbacks(callbacks: Any) -> Any:
    """The callbacks of `fit`, `evaluate` or `predict`, as they are.

    Raises:
        WorkloadError: for something else than callbacks.
    """
    for one in keras.tree.flatten(callbacks):
        if one is not None and (isinstance(one, type) or not hasattr(one, "set_model")):
            made = f", such as {one.__name__}()" if isinstance(one, type) else ""
            raise WorkloadError(
                f"`callbacks` must be a list of keras.callbacks.Callback{made}. Received: {one!r:.200}."
            )
    return callbacks


def _order_of_rows(
    arrays: Any, batch_size: int, shuffle: bool | str, replicas: Replicas, order_seed: int | None
) -> Callable[[int], Any]:
    """The row order of `Model.fit` if a global seed is set, else a random one; the same on all workers."""
    num_rows = int(next(array for array in keras.tree.flatten(arrays) if array is not None).shape[0])
    global_seed = private_tensorflow.global_seed()
    seed = replicas.same_on_all_workers(lambda: -1 if global_seed is None else global_seed % _MAX_SEED)
    if seed >= 0:
        return order_of_keras(num_rows, batch_size, shuffle=shuffle, seed=seed)
    seed = new_order_seed(replicas) if order_seed is None else order_seed
    return random_order(num_rows, batch_size, shuffle=shuffle, seed=seed)


def new_order_seed(replicas: Replicas) -> int:
    """A random seed for the order of arrays, the same on all workers."""
    return replicas.same_on_all_workers(lambda: secrets.randbelow(_MAX_SEED))


def prepared_model(model: Any, method: str) -> Replicas:
    """The replicas of a model, once it is checked to be a Keras 3 model that is compiled as `method` requires."""
    if not private_api.has_trainer(model):
        raise TypeError(
            f"tfaccel.{method} expects a Keras 3 model (keras.Model) first. Received: {model!r} of {type(model)}."
        )
    if method != "predict" and not model.compiled:
        raise ValueError(f"The model is not compiled. Call `model.compile(...)` before `tfaccel.{method}(model, ...)`.")
    if method == "fit" and model.optimizer is None and not has_own_train_step(model):
        raise ValueError(
            "The model was compiled with optimizer=None and cannot be trained. Set an optimizer: "
            "`model.compile(optimizer='adam', ...)`."
        )
    replicas = get_replicas(model)
    if method == "fit":
        refuse_lone_worker(replicas)
    return replicas


def _capped(steps: int | None) -> int | None:
    """`steps`, limited to `keras.config.max_steps_per_epoch()` (for smoke tests of a script)."""
    cap = keras.config.max_steps_per_epoch()
    if cap and (not steps or cap < steps):
        warnings.warn(f"Limiting steps_per_epoch to {cap}", stacklevel=3)
        return int(cap)
    return steps
