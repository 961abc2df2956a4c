"""The optimizers of the parity cases, with settings that exercise each of their features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from tfaccel.parity.case import ParityCase
from tfaccel.training.optimizers import Lars

# Bounds that most gradients of the small models exceed.
CLIPPING: dict[str, dict[str, float]] = {
    "none": {},
    "clipvalue": {"clipvalue": 0.01},
    "clipnorm": {"clipnorm": 0.05},
    "global_clipnorm": {"global_clipnorm": 0.1},
}

# With the default epsilon of 1e-7, the first step of Adam is the sign of the gradient, even if the gradient is pure
# rounding error; two correct runs can then differ by twice the learning rate. With this epsilon, the step vanishes with
# the gradient, and a gradient of the wrong size shows.
EPSILON = 1e-3

OPTIMIZERS: dict[str, Callable[..., keras.optimizers.Optimizer]] = {
    "sgd": lambda **options: keras.optimizers.SGD(0.05, momentum=0.9, **options),
    "adam": lambda **options: keras.optimizers.Adam(0.01, epsilon=EPSILON, **options),
    "adamw": lambda **options: keras.optimizers.AdamW(0.01, epsilon=EPSILON, weight_decay=0.05, **options),
    "adagrad": lambda **options: keras.optimizers.Adagrad(0.05, **options),
    "lamb": lambda **options: keras.optimizers.Lamb(0.01, epsilon=EPSILON, **options),
    "lars": lambda **options: Lars(0.5, nesterov=True, weight_decay=1e-3, **options),
    "ema": lambda **options: keras.optimizers.Adam(
        0.01, epsilon=EPSILON, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=6, **options
    ),
}


def build_optimizer(case: ParityCase, *, name: str = "optimizer") -> keras.optimizers.Optimizer:
    """The optimizer of a case; in float16 wrapped in a loss scale that grows after 7 steps without overflow."""
    options: dict[str, Any] = dict(CLIPPING[case.clipping])
    if case.accumulation > 1:
        options["gradient_accumulation_steps"] = case.accumulation
    optimizer = OPTIMIZERS[case.optimizer](name=name, **options)
    if case.dtype_policy != "mixed_float16":
        return optimizer
    return keras.optimizers.LossScaleOptimizer(
        optimizer, initial_scale=1024.0, dynamic_growth_steps=7, name=f"{name}_scale"
    )
