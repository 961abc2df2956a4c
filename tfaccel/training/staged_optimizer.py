"""Gradual unfreezing within one run: parts of a model start to train later than others, with lower learning rates.

Each part has its own optimizer in a `keras.optimizers.MultiOptimizer`, whose learning rate is 0 until its stage begins.
Everything depends only on the step number, so a run resumes exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras

from tfaccel.training.private import private_api
from tfaccel.training.schedules import LaterSchedule
from tfaccel.training.training_options import TrainingOptions

_LAST_START = 0.3  # fraction of all steps after which the last stage begins
_SLOWER = 0.5  # each stage's peak learning rate, as a fraction of the previous stage's


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
