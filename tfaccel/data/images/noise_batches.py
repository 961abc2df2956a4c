"""Normal noise beside batches: drawn by numpy from seed and epoch, so that an epoch can be repeated exactly.

Noise that is part of the data needs no random operation in the step: every replica gets its own rows of it, and N
replicas see what one device sees.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.data.epoch_positions import Shard, shard_rows

_STREAM = 2  # keeps these numbers apart from those that order and move the examples


def with_noise(
    batches: tf.data.Dataset,
    size: int,
    *,
    global_batch_size: int,
    seed: int,
    epoch: int,
    start_step: int = 0,
    shard: Shard | None = None,
) -> Any:
    """A data set of (batch, noise) with noise of shape (rows of the batch, size) and a standard normal distribution.

    Args:
        batches: a finite data set; only its last batch may have fewer rows than `global_batch_size`.
        size: noise values for each row.
        global_batch_size: rows of a full batch.
        seed, epoch: decide the noise.
        start_step: the place of the first batch in the epoch, from 0.
        shard: (index, count): batches hold the rows of worker `index` out of `count` only; None for all.

    Example:
        >>> batches = tf.data.Dataset.range(5).batch(2)
        >>> [noise.shape[0] for _, noise in with_noise(batches, 3, global_batch_size=2, seed=0, epoch=0)]
        [2, 2, 1]
    """
    generator = np.random.default_rng([seed, epoch, _STREAM])
    num_steps = start_step + int(batches.cardinality())
    noise = generator.standard_normal((num_steps, global_batch_size, size), np.float32)
    noise = noise[start_step:, slice(*shard_rows(global_batch_size, shard))]
    pairs = tf.data.Dataset.zip((batches, tf.data.Dataset.from_tensor_slices(noise)))
    if tf.nest.flatten(batches.element_spec)[0].shape[0] is not None:
        return pairs
    return pairs.map(lambda batch, noise: (batch, noise[: tf.shape(tf.nest.flatten(batch)[0])[0]]))
