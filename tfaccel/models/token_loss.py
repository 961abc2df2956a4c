"""The loss of next-token prediction: sparse cross-entropy with optional label smoothing."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="tfaccel")
class TokenCrossentropy(keras.losses.Loss):
    """Sparse cross-entropy of logits, in nats, with label smoothing, which Keras offers for one-hot labels only.

    Args:
        label_smoothing: fraction of the target spread evenly over all tokens.

    Example:
        >>> round(float(TokenCrossentropy()(ops.array([[1]]), ops.array([[[0.0, 0.0]]]))), 4)
        0.6931
    """

    def __init__(self, label_smoothing: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**{"reduction": "mean_with_sample_weight", "name": "token_crossentropy", **kwargs})
        self.label_smoothing = label_smoothing

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Losses, shaped like the labels, (batch, length); logits are (batch, length, num_tokens)."""
        log_probabilities = ops.log_softmax(ops.cast(y_pred, "float32"))
        labels = ops.cast(y_true, "int32")
        wanted = ops.take_along_axis(log_probabilities, labels[..., None], axis=-1)[..., 0]
        if not self.label_smoothing:
            return -wanted
        spread = ops.mean(log_probabilities, axis=-1)
        return -(1 - self.label_smoothing) * wanted - self.label_smoothing * spread

    def get_config(self) -> dict[str, Any]:
        """Returns the config for `from_config`."""
        return {**super().get_config(), "label_smoothing": self.label_smoothing}
