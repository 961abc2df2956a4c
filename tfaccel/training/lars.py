"""The optimizer LARS: momentum SGD for large batches, with a learning rate for each layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.argument_types import checks_types
from tfaccel.errors import WorkloadError
from tfaccel.training.private.private_api import OwnWeightDecay


@checks_types(WorkloadError, checks_numbers=True)
@keras.saving.register_keras_serializable(package="tfaccel")
class Lars(OwnWeightDecay):
    r"""LARS: stochastic gradient descent with momentum and layer-wise adaptive learning rates, for large batches.

    A weight $w$ with gradient $g$, learning rate $\gamma$, momentum $m$, weight decay $\beta$ and trust coefficient
    $\eta$ is updated by

    $$\lambda = \eta \frac{\|w\|}{\|g\| + \beta \|w\| + \epsilon}, \quad
      v \leftarrow m v + \gamma \lambda (g + \beta w), \quad w \leftarrow w - v$$

    The trust ratio $\lambda$ is 1 if $\|w\|$ or $\|g\|$ is zero. Variables excluded from layer adaptation are updated
    with $\lambda = 1$ and without weight decay. The norm of $g$ is that of the gradient of the global batch. The
    learning rate is typically between 1 and 30, with a warm-up.

    Args:
        learning_rate: a float, or a `keras.optimizers.schedules.LearningRateSchedule`.
        momentum: the momentum, from 0 to below 1.
        nesterov: whether to use Nesterov momentum, $w \leftarrow w - (m v + \gamma \lambda (g + \beta w))$.
        weight_decay: the weight decay $\beta$, part of the trust ratio; None or 0 for none.
        trust_coefficient: the trust coefficient $\eta$, above 0.
        epsilon: a small number $\epsilon$ for numerical stability, at least 0.
        exclude_from_layer_adaptation: regular expressions; variables in whose path one of them is found are excluded.
            By default, biases and the scales and offsets of normalization layers. To exclude a variable from weight
            decay only, call `exclude_from_weight_decay`, as with Keras's optimizers.
        **kwargs: further arguments of `keras.optimizers.Optimizer`: `name`, `clipnorm`, `global_clipnorm`, `use_ema`,
            `gradient_accumulation_steps`, ...

    Raises:
        WorkloadError: for a value outside its range.

    Example:
        >>> import keras, tfaccel
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile(tfaccel.optimizers.Lars(2.0, weight_decay=1e-4), "mse")

    Reference:
        [You, Gitman and Ginsburg, 2017](https://arxiv.org/abs/1708.03888)
    """

    def __init__(
        self,
        learning_rate: Any = 1.0,
        *,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float | None = None,
        trust_coefficient: float = 0.001,
        epsilon: float = 1e-9,
        exclude_from_layer_adaptation: Sequence[str] = ("bias", "gamma", "beta"),
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, **{"name": "lars", **kwargs})
        _check("momentum", momentum, 0 <= momentum < 1, "from 0 to below 1")
        _check("trust_coefficient", trust_coefficient, 0 < trust_coefficient < float("inf"), "above 0")
        _check("epsilon", epsilon, 0 <= epsilon < float("inf"), "at least 0")
        decay = weight_decay or 0.0
        _check("weight_decay", weight_decay, 0 <= decay < float("inf"), "of at least 0, or None")
        self.momentum = momentum
        self.nesterov = nesterov
        self.trust_coefficient = trust_coefficient
        self.epsilon = epsilon
        self._patterns = _patterns(exclude_from_layer_adaptation)
        self._is_adapted: list[bool] = []

    def build(self, var_list: list[keras.Variable]) -> None:
        """Creates a momentum for each variable."""
        if self.built:
            return
        super().build(var_list)
        self.momentums = self.add_optimizer_variables(var_list, "momentum")
        self._is_adapted = [not any(re.search(one, variable.path) for one in self._patterns) for variable in var_list]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates a variable and its momentum."""
        place = self.position(variable)
        momentum, adapted = self.momentums[place], self._is_adapted[place]
        weight = tf.convert_to_tensor(variable)
        gradient = tf.cast(tf.convert_to_tensor(gradient), weight.dtype)  # sums repeated rows of an embedding
        rate = tf.cast(learning_rate, weight.dtype)
        if adapted:
            decay = float(self.weight_decay) if self.decays(variable) else 0.0
            rate *= tf.cast(self._trust_ratio(weight, gradient, decay), weight.dtype)
            gradient += decay * weight
        velocity = tf.cast(self.momentum, weight.dtype) * tf.convert_to_tensor(momentum) + rate * gradient
        self.assign(momentum, velocity)
        self.assign_sub(variable, self.momentum * velocity + rate * gradient if self.nesterov else velocity)

    def _trust_ratio(self, weight: tf.Tensor, gradient: tf.Tensor, decay: float) -> tf.Tensor:
        dtype = tf.float64 if weight.dtype == tf.float64 else tf.float32  # float16 would overflow
        of_weight, of_gradient = (tf.norm(tf.cast(one, dtype)) for one in (weight, gradient))
        ratio = self.trust_coefficient * of_weight / (of_gradient + decay * of_weight + self.epsilon)
        return tf.where((of_weight > 0) & (of_gradient > 0), ratio, tf.ones_like(ratio))

    def get_config(self) -> dict[str, Any]:
        """The config that `from_config` takes."""
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "trust_coefficient": self.trust_coefficient,
            "epsilon": self.epsilon,
            "exclude_from_layer_adaptation": list(self._patterns),
        }


def _check(name: str, value: Any, is_valid: bool, allowed: str) -> None:
    if not is_valid:
        raise WorkloadError(f"`{name}` of Lars must be a number {allowed}. Received: {name}={value!r}.")


def _patterns(given: Sequence[str]) -> tuple[str, ...]:
    """The regular expressions, once they are known to be such."""
    if isinstance(given, str) or not all(isinstance(one, str) for one in given):
        raise WorkloadError(
            "`exclude_from_layer_adaptation` of Lars must be a list of regular expressions. "
            f"Received: exclude_from_layer_adaptation={given!r}."
        )
    for one in given:
        try:
            re.compile(one)
        except re.error as error:
            raise WorkloadError(
                f"`exclude_from_layer_adaptation` of Lars holds {one!r}, which is not a valid regular expression: "
                f"{error}."
            ) from error
    return tuple(given)
