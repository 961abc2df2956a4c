"""Errors of a graph call, and of the data that workers give it, in the user's terms."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from tfaccel.data.graph_batches import Feed, raise_uneven_rows
from tfaccel.errors import DataError, PlanError
from tfaccel.training.steps.replicas import Replicas

_IF_SHORT_OF_MEMORY = (
    "If memory is short: use a smaller batch size, `gradient_accumulation_steps` in the optimizer to keep the number "
    "of examples per update, mixed precision, `keras.remat`, or more devices. `tfaccel.train` splits batches by itself."
)


@contextlib.contextmanager
def clear_errors(num_replicas: int) -> Iterator[None]:
    """Within the block, adds a note to errors that replicas or a lack of memory may have caused.

    Raises:
        DataError: if the rows of a batch do not belong together, a step takes one of them that a replica does not have,
            or an id is beyond its embedding table.
        PlanError: if a step sums over the replicas where they cannot wait for each other, or Keras's optimizer fails
            on a sparse gradient.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        raise_uneven_rows(error, num_replicas)
        _raise_unknown_id(error, num_replicas)
        raise_missing_row(error, num_replicas)
        _note_own_rows(error, num_replicas)
        raise
    except tf.errors.ResourceExhaustedError as error:
        error.add_note(_IF_SHORT_OF_MEMORY)
        raise
    except Exception as error:
        _raise_waits_in_branch(error, num_replicas)
        raise_missing_row(error, num_replicas)
        _note_own_rows(error, num_replicas)
        raise


def _note_own_rows(error: Exception, num_replicas: int) -> None:
    if num_replicas > 1:
        error.add_note(f"Each of the {num_replicas} replicas sees only its own rows of a batch.")


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
    if found is not None and "in update_step" in str(error):
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
