"""Turns the data passed to `fit`, `evaluate` and `predict` into a source of global batches."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data import private_adapters
from tfaccel.data.dataset_source import DatasetSource
from tfaccel.data.row_orders import order_of_keras, random_order
from tfaccel.data.sources import ArraySource, IteratorSource
from tfaccel.errors import DataError
from tfaccel.training.private import private_api, private_tensorflow
from tfaccel.training.steps.model_parts import has_own_train_step
from tfaccel.training.steps.model_scope import replicas_of
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.workers.lone_worker import refuse_lone_worker

Source = ArraySource | IteratorSource

_MAX_SEED = 2**31 - 1


def source_of(
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
        DataError: without data; or if the dataset is already distributed: its global batches cannot be recovered.
    """
    if x is None:
        raise DataError("Received no data: x=None. Pass arrays, a tf.data.Dataset or a keras.utils.PyDataset as x.")
    if isinstance(x, tf.distribute.DistributedDataset):
        raise DataError(
            "Received a DistributedDataset. Pass the tf.data.Dataset of global batches that it was made from: tfaccel "
            "splits each batch over the replicas."
        )
    steps = _capped(steps) or None  # Keras treats 0 as None
    shuffle, steps_per_execution = others.get("shuffle", False), others.get("steps_per_execution", 1)
    adapter = private_adapters.data_adapter(
        x,
        y,
        sample_weight,
        batch_size=batch_size,
        steps=steps,
        shuffle=shuffle,
        class_weight=others.get("class_weight"),
    )
    arrays = private_adapters.dense_arrays(adapter)
    num_epochs = others.get("num_epochs", 1)
    if isinstance(x, tf.data.Dataset) and num_epochs > 1 and steps is None and adapter.num_batches:
        dataset = adapter.get_tf_dataset()
        if private_adapters.passes_are_alike(dataset):  # one iterator for all epochs: the next starts at once
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
    replicas = replicas_of(model)
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
