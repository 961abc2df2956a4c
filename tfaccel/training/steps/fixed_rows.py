"""Names a number of rows that is written into a model: its step works on a whole batch, and not on a replica's rows."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.graph_batches import IteratorBatches
from tfaccel.errors import PlanError, TfaccelError
from tfaccel.training.steps.one_replica import OneReplica
from tfaccel.training.steps.replicas import Replicas, split_rows


@contextlib.contextmanager
def fixed_rows_named(model: keras.Model, replicas: Replicas, kind: str, data: Any) -> Iterator[None]:
    """Within the block, in which steps run: looks for a fixed number of rows if a step fails.

    Args:
        model: a built and compiled model.
        replicas: the replicas of its strategy.
        kind: "train" or "test".
        data: the step's global batch, as eager tensors; None if it is not to be looked for.

    Raises:
        PlanError: if the step can be traced on one device with all rows of the batch, but not with those of a replica.
    """
    try:
        yield
    except TfaccelError:
        raise
    except (ValueError, TypeError, IndexError, tf.errors.InvalidArgumentError) as error:
        sizes = None if data is None or replicas.num_replicas == 1 else rows_of_replica(data, replicas.num_replicas)
        if sizes is None or _failure(model, replicas, kind, _specs(data, sizes[0])) is not None:
            raise
        failure = _failure(model, replicas, kind, _specs(data, sizes[1]))
        if failure is None:
            raise
        raise PlanError(fixed_rows(f"{type(model).__name__}.{kind}_step", sizes, failure)) from error


def fixed_rows(step: str, sizes: tuple[int, int], failure: Exception) -> str:
    """The message for a step that only works on all rows of a batch.

    Args:
        step: the name of the step.
        sizes: the number of rows of the batch, and of one replica.
        failure: what the step raised on the rows of one replica.
    """
    what = re.sub(r"\x1b\[\d*m", "", str(failure)).partition(" for '{{node")[0]  # no terminal colors, no graph nodes
    what = " ".join(what.split()).rstrip(".")
    return (
        f"{step} works on a batch of {sizes[0]} rows, but not on the {sizes[1]} of one replica: "
        f"{type(failure).__name__}: {what:.300}. A number of rows is written into it, or the first axis of the data is "
        f"not that of the rows. Replace a fixed {sizes[0]} by the number of rows that the step receives, "
        "`tf.shape(x)[0]`, and put the rows on the first axis; or build the model outside the strategy to train on one "
        "replica."
    )


def rows_of_replica(data: Any, num_replicas: int) -> tuple[int, int] | None:
    """The number of rows of a batch, or of its specs, and of its first replica; None if unknown, or not dense."""
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
    if not all(isinstance(leaf, tf.Tensor | tf.TensorSpec) for leaf in leaves):
        return None
    rows = {leaf.shape[0] for leaf in leaves if leaf.shape.rank}
    if len(rows) != 1 or None in rows:
        return None
    (num_rows,) = rows
    start, stop = split_rows(num_rows, 0, num_replicas)
    return num_rows, stop - start


def _specs(data: Any, num_rows: int) -> Any:
    def of(leaf: Any) -> Any:
        return (
            None if leaf is None else tf.TensorSpec([num_rows, *leaf.shape[1:]] if leaf.shape.rank else [], leaf.dtype)
        )

    return keras.tree.map_structure(of, data)


def _failure(model: keras.Model, replicas: Replicas, kind: str, specs: Any) -> Exception | None:
    """What tracing a step on one device raises; nothing is run."""
    one = OneReplica(model, replicas, jit_compile=False)
    step = one.train if kind == "train" else one.test
    try:
        tf.function(lambda data: step(IteratorBatches(), data), autograph=False).get_concrete_function(specs)
    except Exception as error:
        return error
    return None
