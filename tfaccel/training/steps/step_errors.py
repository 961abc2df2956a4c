"""Errors of a graph call, and of the data that workers give it, in the user's terms.

If a step fails on a replica's rows and not on a whole batch, a number of rows is written into it; `fixed_rows_named`
names it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.feeds import Feed, IteratorBatches, raise_uneven_rows
from tfaccel.errors import DataError, PlanError, TfaccelError, in_one_line
from tfaccel.training.steps.one_replica import OneReplica
from tfaccel.training.steps.replicas import Replicas, split_rows

NO_TARGETS = "A loss or a metric of the model needs targets, and the data have none. Pass y, or batches of (x, y)."
_IF_SHORT_OF_MEMORY = (
    "If memory is short: use a smaller batch size, `gradient_accumulation_steps` in the optimizer to keep the number "
    "of examples per update, mixed precision, `keras.remat`, or more devices. `tfaccel.train` splits batches by itself."
)


@contextlib.contextmanager
def clear_errors(num_replicas: int) -> Iterator[None]:
    """Within the block, adds a note to errors that replicas or a lack of memory may have caused.

    Raises:
        DataError: if there are no targets, the rows of a batch do not belong together, a step takes one of them that a
            replica does not have, an id is beyond its embedding table, or a target is not a class of the output.
        PlanError: if a step sums over the replicas where they cannot wait for each other, or Keras's optimizer fails
            on a sparse gradient.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        raise_uneven_rows(error, num_replicas)
        _raise_unknown_id(error, num_replicas)
        _raise_unknown_class(error)
        raise_missing_row(error, num_replicas)
        _note_own_rows(error, num_replicas)
        raise
    except tf.errors.ResourceExhaustedError as error:
        error.add_note(_IF_SHORT_OF_MEMORY)
        raise
    except Exception as error:
        _raise_no_targets(error)
        _raise_waits_in_branch(error, num_replicas)
        raise_missing_row(error, num_replicas)
        _note_own_rows(error, num_replicas)
        raise


def _note_own_rows(error: Exception, num_replicas: int) -> None:
    if num_replicas > 1:
        error.add_note(f"Each of the {num_replicas} replicas sees only its own rows of a batch.")


def needs_targets(error: Exception) -> bool:
    """Whether TensorFlow says that a loss or a metric got None for its targets."""
    return isinstance(error, ValueError) and str(error).strip() == "None values not supported."


def _raise_no_targets(error: Exception) -> None:
    if needs_targets(error):
        raise DataError(NO_TARGETS) from error


def _raise_waits_in_branch(error: Exception, num_replicas: int) -> None:
    """Raises PlanError if a step sums over the replicas within a condition or a loop; else does nothing."""
    if isinstance(error, RuntimeError) and "`merge_call` called while defining" in str(error):
        raise PlanError(
            "A step applies gradients, or sums over the replicas, inside a condition or a loop (tf.cond, "
            f"tf.while_loop, tf.map_fn), where {num_replicas} replicas cannot wait for each other. Take it out of "
            "there. To apply the gradients of several batches at once, give the optimizer "
            "`gradient_accumulation_steps` and call it with every batch; or build the model outside the strategy to "
            "train on one replica."
        ) from error


def raise_missing_row(error: Exception, num_replicas: int) -> None:
    """Raises DataError if a step takes a row, by its number, that a replica does not have; else does nothing."""
    found = re.search(r"slice index (-?\d+) of dimension 0 out of bounds", str(error))
    if found is not None and num_replicas > 1:
        raise DataError(
            f"The step takes entry {found[1]} of the first axis of its data, which {num_replicas} replicas split "
            "between them: each has some of the rows of a batch. Received: fewer rows on a replica. If the first axis "
            "does not count rows, as in a batch that stacks anchors and positives, yield a tuple of arrays, (anchors, "
            "positives), or move the axis: `np.swapaxes(batch, 0, 1)`. If it does, the step needs all rows at once: "
            "gather them with tfaccel.ops.all_gather_rows, or build the model outside of the strategy."
        ) from error


def _raise_unknown_id(error: tf.errors.InvalidArgumentError, num_replicas: int) -> None:
    """Raises DataError if an id is beyond the table that it is looked up in; else does nothing."""
    found = re.search(r"(?:indices|ids)\[[\d,]*\] = (-?\d+) is (?:not in|out of range) \[0, (\d+)\)", str(error))
    # tfaccel's own updates of the rows of a table look them up by their ids.
    if found is not None and "in update_step" in str(error) and "in _update_rows" not in str(error):
        raise PlanError(
            "The optimizer fails on the sparse gradient of an embedding table, as Keras's RMSprop(centered=True) does "
            "where ids repeat. Use one that takes it (centered=False), or sum_duplicate_indices=True in a plan."
        ) from error
    if found is not None:
        received, num_rows = found.groups()
        of_batch = (
            f" If the rows are those of a batch: each of {num_replicas} replicas has some of them, and "
            "tfaccel.ops.all_gather_rows gathers them."
        )
        raise DataError(
            f"An id must be the number of a row of its embedding table. Received: id {received}, for a table of "
            f"{num_rows} rows, whose ids are 0 to {int(num_rows) - 1}. Use a larger `input_dim`, or map unknown ids to "
            f"one that is kept for them.{of_batch if num_replicas > 1 else ''}"
        ) from None


def _raise_unknown_class(error: tf.errors.InvalidArgumentError) -> None:
    """Raises DataError if a target is a class that the model's output does not have; else does nothing."""
    found = re.search(r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)", str(error))
    if found is not None:
        raise DataError(
            f"A target must be the number of a class of the model's output. Received: class {found[1]}, for an output "
            f"of {found[2]} classes, which are 0 to {int(found[2]) - 1}. Give the last layer more units, or number the "
            "classes from 0."
        ) from None


def check_same_data(replicas: Replicas, feed: Feed) -> None:
    """Raises DataError if workers read different data: each reads all of it, and takes its rows of each batch."""
    fingerprint = feed.fingerprint() if replicas.num_workers > 1 else None
    if fingerprint is not None and replicas.differs_between_workers(fingerprint):
        raise DataError(
            "The workers have different arrays, or read different first batches. Each worker must create the same "
            "data, and takes its rows of each global batch from them: give `shuffle` a seed (`dataset.shuffle(n, "
            "seed=0)`), or call `keras.utils.set_random_seed` with the same seed on all workers, do not shard the "
            "data, and leave out the same examples."
        )


@contextlib.contextmanager
def fixed_rows_named(model: keras.Model, replicas: Replicas, kind: str, data: Any) -> Iterator[None]:
    """Within the block, in which steps run: looks for a fixed number of rows if a step fails.

    Args:
        data: the step's global batch, as eager tensors; None if it is not to be looked for.
    """
    try:
        yield
    except TfaccelError:
        raise
    except (ValueError, TypeError, IndexError, tf.errors.InvalidArgumentError) as error:
        if isinstance(error, tf.errors.InvalidArgumentError):
            raise_uneven_rows(error, replicas.num_replicas)
        several = data is not None and replicas.num_replicas > 1
        counts = numbers_of_rows(data) if several else []
        if len(set(counts)) > 1:
            raise PlanError(uneven_rows(f"{type(model).__name__}.{kind}_step", counts, error)) from error
        sizes = rows_of_replica(data, replicas.num_replicas) if several else None
        if sizes is None or failure_of_one_device(model, replicas, kind, with_rows(data, sizes[0])) is not None:
            raise
        failure = failure_of_one_device(model, replicas, kind, with_rows(data, sizes[1]))
        if failure is None:
            raise
        raise PlanError(fixed_rows(f"{type(model).__name__}.{kind}_step", sizes, failure)) from error


def numbers_of_rows(data: Any) -> list[int]:
    """The number of rows of each dense tensor of a batch."""
    leaves = [leaf for leaf in keras.tree.flatten(data) if isinstance(leaf, tf.Tensor) and leaf.shape.rank]
    return [int(leaf.shape[0]) for leaf in leaves if leaf.shape[0] is not None]


def uneven_rows(step: str, counts: list[int], failure: Exception) -> str:
    """The message for a step that fails on a replica's share of tensors that have different numbers of rows."""
    return (
        f"{step} fails on the rows of one replica: {_first_words(failure)}. The tensors of a batch have "
        f"{', '.join(map(str, counts))} rows, and each replica gets its share of each, so that rows which belong "
        "together, such as the nodes and the edges of merged graphs, are on different replicas. Give each example one "
        "row in all tensors (padded, or ragged), or build the model outside the strategy to train on one replica."
    )


def _first_words(failure: Exception) -> str:
    """What an error says, without terminal colors and nodes of the graph."""
    found = re.search(r"Incompatible shapes: [^\n]*", str(failure).partition(" for '{{node")[0])
    return in_one_line(found[0] if found else failure).partition(" for '{{node")[0].rstrip(".")[:300]


def fixed_rows(step: str, sizes: tuple[int, int], failure: Exception) -> str:
    """The message for a step that only works on all rows of a batch.

    Args:
        sizes: the number of rows of the batch, and of one replica.
        failure: what the step raised on the rows of one replica.
    """
    return (
        f"{step} works on a batch of {sizes[0]} rows, but not on the {sizes[1]} of one replica: "
        f"{type(failure).__name__}: {_first_words(failure)}. A number of rows is written into it, or the first axis of "
        f"the data is not that of the rows. Replace a fixed {sizes[0]} by the number of rows that the step receives, "
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


def with_rows(data: Any, num_rows: int) -> Any:
    """The specs of dense data with another number of rows."""

    def of(leaf: Any) -> Any:
        return (
            None if leaf is None else tf.TensorSpec([num_rows, *leaf.shape[1:]] if leaf.shape.rank else [], leaf.dtype)
        )

    return keras.tree.map_structure(of, data)


def failure_of_one_device(model: keras.Model, replicas: Replicas, kind: str, specs: Any) -> Exception | None:
    """What tracing a step on one device raises; nothing is run."""
    one = OneReplica(model, replicas, jit_compile=False)
    step = getattr(one, kind)
    try:
        tf.function(lambda data: step(IteratorBatches(), data), autograph=False).get_concrete_function(specs)
    except Exception as error:
        return error
    return None
