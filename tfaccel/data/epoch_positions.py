"""The positions of an epoch that make up its batches: from any step, and for one worker's shard of each batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfaccel.errors import DataError

if TYPE_CHECKING:
    import tensorflow as tf

Shard = tuple[int, int]
Every = tuple[int, int]


def epoch_positions(
    num_examples: int,
    global_batch_size: int,
    *,
    start_step: int = 0,
    shard: Shard | None = None,
    noun: str = "examples",
    num_epochs: int = 1,
    every: Every | None = None,
) -> np.ndarray:
    """The positions in an epoch, from 0, that make up each of its full batches.

    Everything random about an epoch belongs to a position in it. So an epoch that starts at a later step, or of which
    a worker reads only its own rows, has the same content there as the whole epoch, and nothing before it is read.

    Args:
        num_examples: positions in the epoch; those that do not fill a batch are dropped.
        global_batch_size: examples in one batch, over all workers.
        start_step: number of full batches to skip at the beginning.
        shard: (index, count): only the rows of worker `index`, from 0, out of `count`, in each batch.
        noun: what examples are called in messages.
        num_epochs: number of consecutive epochs. Positions of the second begin at `num_examples`, and so on.
        every: (index, count): only every `count`-th batch, from the `index`-th on, counted from `start_step`; None for
            all.

    Returns:
        int64, of shape (num_epochs * num_steps - start_step, rows), or a `count`-th of it.

    Raises:
        DataError: if there are too few examples for one batch, or the shard or step is out of range.

    Example:
        >>> epoch_positions(11, 4).tolist()
        [[0, 1, 2, 3], [4, 5, 6, 7]]
        >>> epoch_positions(11, 4, start_step=1, shard=(1, 2)).tolist()
        [[6, 7]]
        >>> epoch_positions(5, 2, start_step=1, num_epochs=2).tolist()
        [[2, 3], [5, 6], [7, 8]]
        >>> epoch_positions(7, 1, start_step=1, every=(1, 3)).tolist()
        [[2], [5]]
    """
    check_one_batch(num_examples, global_batch_size, noun)
    num_steps = num_examples // global_batch_size
    if not 0 <= start_step <= num_steps:
        raise DataError(f"An epoch has {num_steps} full batches. Received: start_step={start_step}.")
    start, stop = shard_rows(global_batch_size, shard)
    epochs, steps = np.divmod(np.arange(start_step, num_epochs * num_steps, dtype=np.int64), num_steps)
    firsts = epochs * num_examples + steps * global_batch_size
    return firsts[of_every(every)][:, np.newaxis] + np.arange(start, stop, dtype=np.int64)


def of_every(every: Every | None) -> slice:
    """The slice that takes every `count`-th of a sequence of batches; see `epoch_positions`.

    Example:
        >>> list(range(7))[of_every((1, 3))]
        [1, 4]
    """
    index, count = every or (0, 1)
    return slice(index, None, count)


def get_steps(num_batches: int, start_step: int, every: Every | None) -> slice:
    """The steps of an epoch that a number of batches belong to; arguments as of `epoch_positions`.

    Example:
        >>> get_steps(3, 10, None), get_steps(3, 10, (1, 2))
        (slice(10, 13, 1), slice(11, 16, 2))
    """
    index, count = every or (0, 1)
    first = start_step + index
    return slice(first, max(first, first + (num_batches - 1) * count + 1), count)


def shard_rows(global_batch_size: int, shard: Shard | None) -> tuple[int, int]:
    """The start and stop row of a worker's shard of a global batch; all rows without a shard.

    Shards are contiguous, in the order of the workers, and differ by at most one row.

    Raises:
        DataError: if the shard does not exist or would be empty.

    Example:
        >>> [shard_rows(5, (index, 2)) for index in range(2)]
        [(0, 3), (3, 5)]
    """
    index, count = shard or (0, 1)
    if not 0 <= index < count <= global_batch_size:
        raise DataError(
            "A shard must be (index, count) with an index from 0 below count, and count at most the global batch size. "
            f"Received: shard={shard}, global_batch_size={global_batch_size}."
        )
    return -(-global_batch_size * index // count), -(-global_batch_size * (index + 1) // count)


def only_shard(batches: tf.data.Dataset, global_batch_size: int, shard: Shard | None) -> tf.data.Dataset:
    """The worker's rows of batches that must be made as a whole because their rows depend on each other.

    Args:
        batches: full global batches.
        global_batch_size, shard: as in `epoch_positions`.

    Example:
        >>> import tensorflow as tf
        >>> [batch.tolist() for batch in only_shard(tf.data.Dataset.range(4).batch(2), 2, (1, 2)).as_numpy_iterator()]
        [[1], [3]]
    """
    if shard is None:
        return batches
    start, stop = shard_rows(global_batch_size, shard)
    import tensorflow as tf

    return batches.map(lambda *batch: tf.nest.map_structure(lambda leaf: leaf[start:stop], _only(batch)))


def _only(batch: tuple) -> object:
    return batch if len(batch) > 1 else batch[0]


def check_one_batch(num_rows: int | None, global_batch_size: int, noun: str = "examples") -> None:
    """Raises DataError if the examples (called `noun` in the message) are known not to fill one batch.

    Example:
        >>> check_one_batch(3, 4)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        tfaccel.errors.DataError: A batch takes 4 examples, but there are 3 to train on. Use a ...
    """
    if num_rows is not None and num_rows < global_batch_size:
        raise DataError(
            f"A batch takes {global_batch_size} {noun}, but there are {num_rows} to train on. "
            f"Use a global batch size of at most {num_rows}."
        )
