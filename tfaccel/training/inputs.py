"""What users pass to `fit`, `evaluate` and `predict`, as a source of global batches."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.sources import ArraySource, IteratorSource
from tfaccel.errors import DataError
from tfaccel.training import private_api
from tfaccel.training.model_parts import has_own_train_step
from tfaccel.training.replicas import Replicas

Source = ArraySource | IteratorSource


def source_of(x: Any, y: Any = None, sample_weight: Any = None, *, replicas: Replicas, batch_size: int | None = None,
              steps: int | None = None, **others: Any) -> Source:  # fmt: skip
    """A source of global batches for anything that `Model.fit` takes.

    Args:
        x, y, sample_weight, batch_size: as in `Model.fit`; the batch size is the global one.
        replicas: the replicas that share each batch.
        steps: `steps_per_epoch` (or `validation_steps`, `steps`).
        others: `shuffle`, `class_weight`, `num_epochs`.

    Raises:
        DataError: for datasets that are distributed already: a global batch cannot be told from their shares.
    """
    if isinstance(x, tf.distribute.DistributedDataset):
        raise DataError(
            "Received a DistributedDataset. Pass the tf.data.Dataset of global batches that it was made from: tfaccel "
            "gives each replica its rows."
        )
    steps = _capped(steps) or None  # Keras takes 0 for None
    shuffle = others.get("shuffle", False)
    adapter = private_api.data_adapter(
        x, y, sample_weight, batch_size=batch_size, steps=steps, shuffle=shuffle,
        class_weight=others.get("class_weight"),
    )  # fmt: skip
    arrays = private_api.dense_arrays(adapter)
    if arrays is not None:
        seed = replicas.same_on_all_workers(_draw_seed) if shuffle else 0
        return ArraySource(arrays, global_batch_size=adapter.batch_size, shuffle=shuffle, seed=seed, steps=steps)
    hooks = None if isinstance(x, tf.data.Dataset) else adapter
    return IteratorSource(adapter.get_tf_dataset(), num_batches=adapter.num_batches, steps_per_epoch=steps,
                          num_epochs=others.get("num_epochs", 1), adapter=hooks)  # fmt: skip


def prepared_model(model: Any, method: str) -> Replicas:
    """The replicas of a model that is fit for `method`; refuses what is no compiled Keras 3 model."""
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"tfaccel.{method} expects a Keras 3 model (keras.Model) first. Received: {model!r} of {type(model)}."
        )
    if method != "predict" and not model.compiled:
        raise ValueError(f"The model is not compiled. Call `model.compile(...)` before `tfaccel.{method}(model, ...)`.")
    if method == "fit" and model.optimizer is None and not has_own_train_step(model):
        raise ValueError(
            "The model was compiled with optimizer=None, so that nothing can train it. Name an optimizer: "
            "`model.compile(optimizer='adam', ...)`."
        )
    return Replicas(model.distribute_strategy)


def _draw_seed() -> int:
    """A seed that follows `keras.utils.set_random_seed`."""
    return int(tf.random.uniform([], maxval=2**31 - 1, dtype=tf.int32))


def _capped(steps: int | None) -> int | None:
    """`steps`, at most `keras.config.max_steps_per_epoch()` (for smoke runs of any script)."""
    cap = keras.config.max_steps_per_epoch()
    if cap and (not steps or cap < steps):
        warnings.warn(f"Limiting steps_per_epoch to {cap}", stacklevel=3)
        return int(cap)
    return steps
