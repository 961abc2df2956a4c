"""Normal noise paired with batches: drawn by NumPy from seed and epoch, so that an epoch is reproducible.
from typing import TYPE_CHECKING

Noise that is part of the data needs no random operation in the step: every replica gets its own rows, and N replicas
see the same noise as one device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.epochs import Part, shard_rows

if TYPE_CHECKING:
    import tensorflow as tf

_STREAM = 2  # keeps these draws independent of those that shuffle and transform the examples


def with_noise(batches: tf.data.Dataset, size: int, part: Part) -> Any:
    """A dataset of (batch, noise) with standard normal noise of shape (rows of the batch, size).

    Args:
        batches: a finite dataset; only its last batch may have fewer rows than the others.
        size: noise values for each row.
        part: which batches these are; seed and epoch determine the noise.

    Example:
        >>> import tensorflow as tf
        >>> batches, part = tf.data.Dataset.range(5).batch(2), Part(global_batch_size=2, seed=0, epoch=0)
        >>> [noise.shape[0] for _, noise in with_noise(batches, 3, part)]
        [2, 2, 1]
    """
    import tensorflow as tf

    steps = part.steps(int(batches.cardinality()))
    noise = part.generator(_STREAM).standard_normal((steps.stop, part.global_batch_size, size), np.float32)
    noise = noise[steps, slice(*shard_rows(part.global_batch_size, part.shard))]
    pairs = tf.data.Dataset.zip((batches, tf.data.Dataset.from_tensor_slices(noise)))
    if tf.nest.flatten(batches.element_spec)[0].shape[0] is not None:
        return pairs
    return pairs.map(lambda batch, noise: (batch, noise[: tf.shape(tf.nest.flatten(batch)[0])[0]]))
