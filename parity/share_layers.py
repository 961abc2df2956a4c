"""One-device layers that reproduce N replicas, for cases in which plain Keras cannot be the reference.

Each splits the rows of a batch into the replicas' shares and processes every share as its replica does.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.steps.replica_state import SEED_STRIDE
from tfaccel.training.steps.replicas import split_rows


def cut_into_shares(rows: tf.Tensor, num_shares: int) -> list[tf.Tensor]:
    """The rows of each replica, in order."""
    bounds = [split_rows(tf.shape(rows)[0], share, num_shares) for share in range(num_shares)]
    return [rows[start:stop] for start, stop in bounds]


@keras.saving.register_keras_serializable("tfaccel_parity")
class ShareDropout(keras.layers.Layer):
    """Dropout with one seed per replica: `seed`, `seed + SEED_STRIDE`, ..., so that masks differ."""

    def __init__(self, rate: float, *, seed: int, num_shares: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = rate
        self.generators = [keras.random.SeedGenerator(seed + share * SEED_STRIDE) for share in range(num_shares)]

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Applies a separate dropout mask to each share."""
        if not training:
            return inputs
        shares = cut_into_shares(inputs, len(self.generators))
        masked = [keras.random.dropout(s, self.rate, seed=g) for s, g in zip(shares, self.generators, strict=True)]
        return tf.concat(masked, axis=0)


@keras.saving.register_keras_serializable("tfaccel_parity")
class ShareBatchNormalization(keras.layers.BatchNormalization):
    """Batch normalization with separate statistics per share; inference uses their mean."""

    def __init__(self, *, num_shares: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_shares = num_shares

    def build(self, input_shape: Any) -> None:
        """Adds the shares' moving statistics, shape (num_shares, channels)."""
        super().build(input_shape)
        shape = (self.num_shares, input_shape[-1])
        self.share_mean = self.add_weight(
            shape=shape, name="share_mean", initializer="zeros", trainable=False, autocast=False
        )
        self.share_variance = self.add_weight(
            shape=shape, name="share_variance", initializer="ones", trainable=False, autocast=False
        )

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Normalizes `inputs`."""
        del mask
        rows = tf.cast(inputs, tf.float32)
        if not training:
            mean, variance = (keras.ops.mean(v, axis=0) for v in (self.share_mean, self.share_variance))
            return tf.cast(self._normalized(rows, mean, variance), self.compute_dtype)
        shares = cut_into_shares(rows, self.num_shares)
        outputs, means, variances = [], [], []
        for share in shares:
            count = tf.maximum(tf.reduce_prod(tf.cast(tf.shape(share)[:-1], tf.float32)), 1.0)
            mean = tf.reduce_sum(share, axis=[0, 1, 2]) / count
            variance = tf.reduce_sum(tf.square(share - mean), axis=[0, 1, 2]) / count
            outputs.append(self._normalized(share, mean, variance))
            means.append(mean)
            variances.append(variance)
        present = [tf.shape(share)[0] > 0 for share in shares]
        for moving, seen in ((self.share_mean, means), (self.share_variance, variances)):
            old = tf.convert_to_tensor(moving)
            new = old * self.momentum + tf.stack(seen) * (1.0 - self.momentum)
            moving.assign(tf.where(tf.stack(present)[:, tf.newaxis], new, old))
        return tf.cast(tf.concat(outputs, axis=0), self.compute_dtype)

    def _normalized(self, rows: Any, mean: Any, variance: Any) -> Any:
        return (rows - mean) * tf.math.rsqrt(variance + self.epsilon) * self.gamma + self.beta


class AverageShares(keras.callbacks.Callback):
    """Sets the shares' moving statistics, and those of the layer, to their mean at the end of each epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Averages every `ShareBatchNormalization` of the model."""
        del epoch, logs
        for layer in self.model.layers:
            if isinstance(layer, ShareBatchNormalization):
                for shares, own in (
                    (layer.share_mean, layer.moving_mean),
                    (layer.share_variance, layer.moving_variance),
                ):
                    mean = keras.ops.mean(shares, axis=0)
                    own.assign(mean)
                    shares.assign(keras.ops.broadcast_to(mean, shares.shape))


@keras.saving.register_keras_serializable("tfaccel_parity")
class OneHotEmbedding(keras.layers.Embedding):
    """An embedding computed as a matrix product, whose dense gradient correctly sums repeated rows."""

    def call(self, inputs: Any) -> Any:
        """Returns the embedding of each token."""
        one_hot = keras.ops.one_hot(inputs, self.input_dim, dtype=self.compute_dtype)
        return keras.ops.matmul(one_hot, keras.ops.cast(self.embeddings, self.compute_dtype))
