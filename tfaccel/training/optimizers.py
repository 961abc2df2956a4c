"""Optimizers that Keras does not have: LARS, for large batches, and one that unfreezes a model gradually within a run.

Parts of the model then start to train later than others, with lower learning rates. Each has its own optimizer in a
`keras.optimizers.MultiOptimizer`, whose learning rate is 0 until its stage begins. Everything depends only on the step
number, so a run resumes exactly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from tfaccel.argument_types import checks_types
from tfaccel.errors import WorkloadError
from tfaccel.training.private import private_api
from tfaccel.training.private.private_api import OwnWeightDecay
from tfaccel.training.schedules import LaterSchedule
from tfaccel.training.training_options import TrainingOptions

_LAST_START = 0.3  # fraction of all steps after which the last stage begins
_SLOWER = 0.5  # each stage's peak learning rate, as a fraction of the previous stage's


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


@keras.saving.register_keras_serializable(package="tfaccel")
class Delayed(LaterSchedule):
    """A schedule that starts after a delay, during which the learning rate is zero.

    Args:
        schedule: the delayed schedule; its step 0 is the first step after the delay.
        num_steps: number of steps to delay.

    Example:
        >>> falling = keras.optimizers.schedules.PolynomialDecay(1.0, decay_steps=2, end_learning_rate=0.0)
        >>> [float(Delayed(falling, 2)(step)) for step in range(5)]
        [0.0, 0.0, 1.0, 0.5, 0.0]
    """

    def __call__(self, step: Any) -> Any:
        """The learning rate of a step."""
        step = keras.ops.cast(step, "float32")
        later = self.schedule(keras.ops.maximum(step - self.num_steps, 0.0))
        return keras.ops.where(step < self.num_steps, keras.ops.zeros_like(later), later)


def stage_starts(num_stages: int, num_steps: int) -> list[int]:
    """The first step of each stage of unfreezing, evenly spaced up to 30 % of the run.

    Example:
        >>> stage_starts(3, 100)
        [10, 20, 30]
    """
    return [round(_LAST_START * num_steps * (stage + 1) / num_stages) for stage in range(num_stages)]


def layer_stages(backbone: keras.Model, num_stages: int) -> list[list[keras.Variable]]:
    """The trainable weights of a model in stages with equal numbers of layers, those nearest the output first.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), *(keras.layers.Dense(2, name=f"d{i}") for i in range(4))])
        >>> kernels = [[w.path for w in stage if "kernel" in w.path] for stage in layer_stages(model, 2)]
        >>> [[path.split("/")[-2] for path in stage] for stage in kernels]
        [['d2', 'd3'], ['d0', 'd1']]
    """
    layers = [layer for layer in private_api.all_layers(backbone) if not isinstance(layer, keras.Model)]
    layers = [layer for layer in layers if layer.trainable_weights]
    size = -(-len(layers) // num_stages)
    stages = [layers[max(0, end - size) : end] for end in range(len(layers), 0, -size)]
    return [[weight for layer in stage for weight in layer.trainable_weights] for stage in stages]


def staged_optimizer(
    options: TrainingOptions, stages: Sequence[Sequence[keras.Variable]], *, num_steps: int
) -> keras.optimizers.Optimizer:
    """One optimizer for the weights that train from the start, and one for each stage.

    Args:
        options: options for the part that trains from the start; stages use them with lower rates, and start later.
    """
    default, optimizers = options.make_optimizer(num_steps=num_steps), []
    for number, start in enumerate(stage_starts(len(stages), num_steps)):
        slower = replace(options, learning_rate=options.peak_learning_rate * _SLOWER ** (number + 1))
        optimizer = slower.make_optimizer(num_steps=max(1, num_steps - start))
        optimizer.learning_rate = Delayed(private_api.learning_rate_schedule(optimizer), start)
        optimizers.append(optimizer)
    if not stages:
        return default
    return StagedOptimizer(default, optimizers, [[weight.path for weight in stage] for stage in stages])


@keras.saving.register_keras_serializable(package="tfaccel")
class StagedOptimizer(keras.optimizers.MultiOptimizer):
    """A `MultiOptimizer` that loads correctly: Keras 3.15 would create one optimizer per weight on loading.

    Args:
        default: optimizer for weights that are in no stage.
        paths: paths of each stage's weights. In a loaded model, paths may change, but positions do not.
        places: positions of each stage's weights among the trainable ones; None to find them from the paths.
    """

    def __init__(
        self,
        default: keras.optimizers.Optimizer,
        optimizers: Sequence[keras.optimizers.Optimizer],
        paths: Sequence[Sequence[str]],
        places: Sequence[Sequence[int]] | None = None,
        **kwargs: Any,
    ) -> None:
        part_of_path = _make_map([default, *optimizers], paths)
        super().__init__(part_of_path, **kwargs)
        self._part_of_path = part_of_path
        self._parts = [default, *optimizers]
        self._paths = paths
        self._places = places

    def build(self, var_list: list[keras.Variable]) -> None:
        """Assigns each weight to its optimizer."""
        if self._places is None:
            self._places = [[i for i, one in enumerate(var_list) if one.path in stage] for stage in self._paths]
        self._part_of_path.clear()
        self._part_of_path.update(_make_map(self._parts, [[var_list[i].path for i in stage] for stage in self._places]))
        super().build(var_list)

    def get_config(self) -> dict[str, Any]:
        """The config that `from_config` takes."""
        return {
            "parts": [keras.saving.serialize_keras_object(part) for part in self._parts],
            "paths": [list(stage) for stage in self._paths],
            "places": None if self._places is None else [list(stage) for stage in self._places],
            "loss_scale_factor": self.loss_scale_factor,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> StagedOptimizer:
        """Creates an optimizer from the config that `get_config` returned."""
        rest = dict(config)
        parts = [keras.saving.deserialize_keras_object(part, custom_objects) for part in rest.pop("parts")]
        return cls(parts[0], parts[1:], **rest)


def _make_map(
    parts: Sequence[keras.optimizers.Optimizer], paths: Sequence[Sequence[str]]
) -> keras.optimizers.OptimizerMap:
    """Maps each stage's paths to its optimizer; the first optimizer is the default."""
    by_path = {path: part for part, stage in zip(parts[1:], paths, strict=True) for path in stage}
    return keras.optimizers.OptimizerMap(parts[0], by_path)
