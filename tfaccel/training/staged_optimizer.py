"""Unfreezing by stages inside one run: parts of a model begin to learn later than others, and more slowly.

Each part has an optimizer of its own in a `keras.optimizers.MultiOptimizer`; its learning rate is nothing until its
stage begins. All of it follows from the number of the step, so that a run resumes exactly. Keras 3.15 saves a
MultiOptimizer but cannot load it: load such a model with `compile=False`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras

from tfaccel.training import private_api
from tfaccel.training.schedules import LaterSchedule
from tfaccel.training.training_options import TrainingOptions

_LAST_START = 0.3  # part of all steps after which the last stage begins
_SLOWER = 0.5  # each stage's highest learning rate, as a part of the one's before


@keras.saving.register_keras_serializable(package="tfaccel")
class Delayed(LaterSchedule):
    """A schedule that begins later; until then the rate is zero.

    Args:
        schedule: what follows; its step 0 is the first step after the delay.
        num_steps: steps of the delay.

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
    """The first step of each stage of unfreezing, evenly spread over the first third of the run.

    Example:
        >>> stage_starts(3, 100)
        [10, 20, 30]
    """
    return [round(_LAST_START * num_steps * (stage + 1) / num_stages) for stage in range(num_stages)]


def layer_stages(backbone: keras.Model, num_stages: int) -> list[list[keras.Variable]]:
    """The trainable weights of a model in so many stages of as many layers, those nearest the output first.

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
    """One optimizer for what learns from the start, and one for each stage.

    Args:
        options: of the part that learns from the start; stages have the same with lower rates, and begin later.
        stages: the weights of each stage.
        num_steps: optimizer steps of the whole run.
    """
    by_path: dict[str, keras.optimizers.Optimizer] = {}
    for number, (start, weights) in enumerate(zip(stage_starts(len(stages), num_steps), stages, strict=True)):
        slower = replace(options, learning_rate=options.peak_learning_rate * _SLOWER ** (number + 1))
        optimizer = slower.make_optimizer(num_steps=max(1, num_steps - start))
        optimizer.learning_rate = Delayed(private_api.learning_rate_schedule(optimizer), start)
        by_path |= dict.fromkeys((weight.path for weight in weights), optimizer)
    default = options.make_optimizer(num_steps=num_steps)
    if not by_path:
        return default
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(default, by_path))
