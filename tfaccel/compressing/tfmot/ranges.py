"""Initial ranges of activations for quantization-aware training. Used in a child process only.

TFMOT initializes every range to -6..6 and moves it by a thousandth of the difference in each step, so that after a
short training ranges are far too wide or clip larger values. Here they are initialized from a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfaccel.graph_function import graph_function

# The update rate of ranges in TFMOT's MovingAverageQuantizer (tensorflow-model-optimization 0.8.1).
_STEP = 0.001
_OF_INPUTS = "QuantizeLayer"  # its range covers all values seen so far, and -6..6
_MAX_PASSES = 10
_SMALL_CHANGE = 0.05  # fraction of a range's width: passes end once all changes are smaller


def begin_with_ranges(model: Any, inputs: Sequence[np.ndarray]) -> None:
    """Sets the ranges of activations to those of a batch; nothing else changes.

    A layer's inputs depend on the ranges before it, so several passes are needed.

    Args:
        model: a `tf_keras` model that TFMOT has prepared for quantization-aware training.
        inputs: a batch of training data, one array for each input.
    """
    import tensorflow as tf

    of_inputs = [variable for layer in model.layers if type(layer).__name__ == _OF_INPUTS for variable in layer.weights]
    ranges = [found for layer in model.layers if type(layer).__name__ != _OF_INPUTS for found in _get_ranges(layer)]
    others = [(variable, variable.numpy()) for variable in model.non_trainable_weights]
    tensors = [tf.convert_to_tensor(array) for array in inputs]
    forward = graph_function(lambda: model(tensors if len(tensors) > 1 else tensors[0], training=True))
    for variable in of_inputs:
        if not variable.shape.rank and variable.dtype.is_floating:
            variable.assign(0.0)  # covers all values from now on
    for _ in range(_MAX_PASSES):
        before = [(float(low), float(high)) for low, high, _ in ranges]
        forward()
        largest_change = 0.0
        for (low, high, part), (old_low, old_high) in zip(ranges, before, strict=True):
            least = old_low - (old_low - float(low)) / part
            most = old_high - (old_high - float(high)) / part
            if not most > least:  # all zeros: unchanged
                least, most = old_low, old_high
            low.assign(min(least, 0.0))
            high.assign(max(most, 0.0))
            change = max(abs(least - old_low), abs(most - old_high)) / (most - least)
            largest_change = max(largest_change, change)
        if largest_change < _SMALL_CHANGE:
            break
    known = {id(variable) for low, high, _ in ranges for variable in (low, high)} | {
        id(variable) for variable in of_inputs
    }
    for variable, value in others:
        if id(variable) not in known:
            variable.assign(value)


def _get_ranges(layer: Any) -> list[tuple[Any, Any, float]]:
    """Minimum and maximum of each range of activations, and the fraction by which a pass moves them.

    A layer that is called several times moves them as often; ranges of kernels are recomputed in each step.
    """
    part = 1.0 - (1.0 - _STEP) ** max(1, len(layer.inbound_nodes))
    named = {str(variable.name.split(":")[0]): variable for variable in layer.non_trainable_weights}
    return [
        (low, named[f"{name.removesuffix('_min')}_max"], part)
        for name, low in named.items()
        if name.endswith("_min") and not low.shape.rank and "kernel" not in name
    ]
