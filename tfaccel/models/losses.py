"""Losses that Keras lacks: of quantile forecasts, of next-token prediction, and of variational autoencoders.

A variational autoencoder maps `{"values", "noise"}` to `{"reconstruction", "divergence"}`. The sum of the losses of
both is the negative evidence lower bound (ELBO), in nats.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

QUANTILES = (0.1, 0.5, 0.9)

_LOG_TWO_PI = float(np.log(2 * np.pi))
_MAX_LOG_VARIANCE = 4.0
_MIN_PROBABILITY = 1e-3
_ROWS_AT_ONCE = 512


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

    is_by_token = True  # `call` treats each label and its logits alike and apart: see the plan field `logit_chunks`

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


@keras.saving.register_keras_serializable("tfaccel")
def bernoulli_cost(y_true: Any, y_pred: Any) -> Any:
    r"""The Bernoulli negative log-likelihood of values from 0 to 1: $-\sum_i x_i \log p_i + (1 - x_i) \log(1 - p_i)$.

    Args:
        y_true: $x$, of shape (num_rows, ...).
        y_pred: the logits of $p$, of the same shape.

    Returns:
        Nats, of shape (num_rows,).

    Example:
        >>> round(float(bernoulli_cost(np.array([[1.0, 0.0]]), np.array([[0.0, 0.0]]))[0]), 3)
        1.386
    """
    x, logits = ops.cast(y_true, "float32"), ops.cast(y_pred, "float32")
    costs = ops.softplus(logits) - x * logits
    return ops.sum(ops.reshape(costs, (-1, int(np.prod(costs.shape[1:])))), axis=1)


@keras.saving.register_keras_serializable("tfaccel")
def normal_cost(y_true: Any, y_pred: Any) -> Any:
    r"""The Gaussian negative log-likelihood: $\sum_i \frac{(x_i - m_i)^2}{2 s_i^2} + \log s_i + c$.

    Args:
        y_true: $x$, of shape (num_rows, num_columns).
        y_pred: $m$, then the unclipped $\log s^2$; of shape (num_rows, 2 * num_columns).

    Returns:
        Nats, of shape (num_rows,).

    Example:
        >>> round(float(normal_cost(np.array([[0.0]]), np.array([[0.0, 0.0]]))[0]), 3)
        0.919
    """
    mean, raw = ops.split(ops.cast(y_pred, "float32"), 2, axis=-1)
    log_variance = _MAX_LOG_VARIANCE * ops.tanh(raw / _MAX_LOG_VARIANCE)
    squares = (ops.cast(y_true, "float32") - mean) ** 2
    return 0.5 * ops.sum(squares * ops.exp(-log_variance) + log_variance + _LOG_TWO_PI, axis=-1)


@keras.saving.register_keras_serializable("tfaccel")
def divergence_cost(y_true: Any, y_pred: Any) -> Any:
    """The KL divergence, as returned by the model; of shape (num_rows,)."""
    return ops.cast(y_pred, "float32")[:, 0] + 0.0 * ops.cast(y_true, "float32")[:, 0]


def bounds(model: keras.Model, values: np.ndarray, *, is_image: bool, num_samples: int) -> np.ndarray:
    """The ELBO of each example, averaged over samples of its latent vector.

    Args:
        model: a variational autoencoder, as described at the top of this module.
        values: of shape (num_rows, ...).
        is_image: whether values are probabilities (Bernoulli) rather than numbers (Gaussian).
        num_samples: number of latent samples; they are the same in every call.

    Returns:
        Nats, of shape (num_rows,); float64.
    """
    cost = bernoulli_cost if is_image else normal_cost
    latent_size = model.get_layer("noise").batch_shape[1]
    total = np.zeros(len(values))
    for sample in range(num_samples):
        noise = np.random.default_rng(sample).standard_normal((len(values), latent_size), np.float32)
        made = model.predict({"values": values, "noise": noise}, batch_size=_ROWS_AT_ONCE, verbose=0)
        total -= np.asarray(cost(values, made["reconstruction"]), np.float64) + made["divergence"][:, 0]
    return total / num_samples


def independent_log_likelihood(train: np.ndarray, values: np.ndarray, *, is_image: bool) -> np.ndarray:
    """The log-likelihood under a model in which pixels or columns are independent.

    Args:
        train: the training examples; numbers are standardized.
        values: the examples to score, of shape (num_rows, ...).
        is_image: whether values are probabilities (Bernoulli) rather than numbers (Gaussian).

    Returns:
        Nats, of shape (num_rows,).
    """
    if is_image:
        p = np.clip(train.mean(axis=0), _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
        return -np.asarray(bernoulli_cost(values, np.broadcast_to(np.log(p / (1 - p)), values.shape)))
    return -np.asarray(normal_cost(values, np.zeros((len(values), 2 * values.shape[1]), np.float32)))


def spliced(values: np.ndarray) -> np.ndarray:
    """Replaces the second half of each example (of its pixel rows, or of its columns) by the next example's.

    Example:
        >>> spliced(np.array([[1, 2], [3, 4]])).tolist()
        [[1, 4], [3, 2]]
    """
    made, half = values.copy(), values.shape[1] // 2
    made[:, half:] = np.roll(values, -1, axis=0)[:, half:]
    return made
