"""Normal noise paired with batches: drawn by NumPy from seed and epoch, so that an epoch is reproducible.

Noise that is part of the data needs no random operation in the step: every replica gets its own rows, and N replicas
see the same noise as one device.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.data.epoch_positions import Shard, shard_rows

_STREAM = 2  # keeps these draws independent of those that shuffle and transform the examples


def with_noise(
    batches: tf.data.Dataset,
    size: int,
    *,
    global_batch_size: int,
    seed: int,
    epoch: int,
    steps: slice | None = None,
    shard: Shard | None = None,
) -> Any:
    """A dataset of (batch, noise) with standard normal noise of shape (rows of the batch, size).

    Args:
        batches: a finite dataset; only its last batch may have fewer rows than `global_batch_size`.
        size: noise values for each row.
        global_batch_size: rows of a full batch.
        seed, epoch: determine the noise.
        steps: of the epoch, one for each batch, as from `get_steps`; None for the first ones.
        shard: (index, count): batches hold only the rows of worker `index` out of `count`; None for all.

    Example:
        >>> batches = tf.data.Dataset.range(5).batch(2)
        >>> [noise.shape[0] for _, noise in with_noise(batches, 3, global_batch_size=2, seed=0, epoch=0)]
        [2, 2, 1]
    """
    generator = np.random.default_rng([seed, epoch, _STREAM])
    steps = steps or slice(0, int(batches.cardinality()))
    noise = generator.standard_normal((steps.stop, global_batch_size, size), np.float32)
    noise = noise[steps, slice(*shard_rows(global_batch_size, shard))]
    pairs = tf.data.Dataset.zip((batches, tf.data.Dataset.from_tensor_slices(noise)))
    if tf.nest.flatten(batches.element_spec)[0].shape[0] is not None:
        return pairs
    return pairs.map(lambda batch, noise: (batch, noise[: tf.shape(tf.nest.flatten(batch)[0])[0]]))
