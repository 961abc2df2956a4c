"""Losses that Keras has not: of quantile forecasts, and of next-token prediction with label smoothing."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

QUANTILES = (0.1, 0.5, 0.9)


@keras.saving.register_keras_serializable(package="tfaccel")
class QuantileLoss(keras.losses.Loss):
    r"""The pinball loss $\max(q (y - \hat y), (q - 1)(y - \hat y))$, averaged over quantiles q, steps and columns.

    It is minimal if each prediction is that quantile of the true distribution.

    Args:
        scales: divisors of the differences, one per column.
        quantiles: the predicted quantiles, in the order of the last axis of the predictions.

    True values have shape (rows, horizon, num_columns, 1), predictions (rows, horizon, num_columns, num_quantiles).

    Source: R. Koenker and G. Bassett, Regression quantiles, 1978.

    Example:
        >>> true, predicted = ops.array([[[[1.0]]]]), ops.array([[[[0.0, 1.0, 3.0]]]])
        >>> round(float(QuantileLoss([1.0])(true, predicted)), 4)  # (0.1 + 0 + 0.2) / 3
        0.1
    """

    def __init__(
        self,
        scales: list[float],
        quantiles: tuple[float, ...] = QUANTILES,
        name: str = "quantile_loss",
        reduction: str = "sum_over_batch_size",
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.scales = [float(scale) for scale in scales]
        self.quantiles = tuple(quantiles)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The loss of each row, of shape (rows,)."""
        scales = ops.reshape(ops.convert_to_tensor(self.scales, y_pred.dtype), (1, 1, -1, 1))
        quantiles = ops.convert_to_tensor(self.quantiles, y_pred.dtype)
        differences = (ops.cast(y_true, y_pred.dtype) - y_pred) / scales
        return ops.mean(ops.maximum(quantiles * differences, (quantiles - 1) * differences), axis=(1, 2, 3))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "scales": self.scales, "quantiles": self.quantiles}


@keras.saving.register_keras_serializable(package="tfaccel")
def median_absolute_error(y_true: Any, y_pred: Any) -> Any:
    """The mean absolute error of the middle quantile, per row; shapes as in `QuantileLoss`.

    Example:
        >>> float(median_absolute_error(ops.array([[[[1.0]]]]), ops.array([[[[0.0, 1.5, 3.0]]]]))[0])
        0.5
    """
    middle = y_pred[..., y_pred.shape[-1] // 2]
    return ops.mean(ops.abs(ops.cast(y_true[..., 0], y_pred.dtype) - middle), axis=(1, 2))


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
