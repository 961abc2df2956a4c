"""Ranges of activations before training that imitates int8 begins. Used in a child process only.

TFMOT lets every range begin at -6 to 6 and moves it by a thousandth of the way in each step, so that a short training
ends with ranges that are far too wide, or that cut off what is larger. Here they begin with those of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# How far TFMOT's MovingAverageQuantizer moves a range in a step (tensorflow-model-optimization 0.8.1).
_STEP = 0.001
_OF_INPUTS = "QuantizeLayer"  # whose range holds all values that it has seen, and -6 to 6
_MOST_PASSES = 10
_SMALL_CHANGE = 0.05  # of a range's width; a pass that changes all of them by less was the last


def begin_with_ranges_of(model: Any, inputs: Sequence[np.ndarray]) -> None:
    """Sets the ranges of activations to those of a batch; everything else stays as it is.

    What a layer takes depends on the ranges before it, so that several passes are needed.

    Args:
        model: a `tf_keras` model that TFMOT has made imitate int8.
        inputs: a batch of training data, one array for each input.
    """
    import tensorflow as tf

    of_inputs = [variable for layer in model.layers if type(layer).__name__ == _OF_INPUTS for variable in layer.weights]
    ranges = [found for layer in model.layers if type(layer).__name__ != _OF_INPUTS for found in _ranges_of(layer)]
    others = [(variable, variable.numpy()) for variable in model.non_trainable_weights]
    tensors = [tf.convert_to_tensor(array) for array in inputs]
    forward = tf.function(lambda: model(tensors if len(tensors) > 1 else tensors[0], training=True), autograph=False)
    for variable in of_inputs:
        if not variable.shape.rank and variable.dtype.is_floating:
            variable.assign(0.0)  # holds all values from now on
    for _ in range(_MOST_PASSES):
        before = [(float(low), float(high)) for low, high, _ in ranges]
        forward()
        largest_change = 0.0
        for (low, high, part), (old_low, old_high) in zip(ranges, before, strict=True):
            least = old_low - (old_low - float(low)) / part
            most = old_high - (old_high - float(high)) / part
            if not most > least:  # nothing but zeros: as it was
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


def _ranges_of(layer: Any) -> list[tuple[Any, Any, float]]:
    """Least and greatest value of each range of activations, and which part of the way a pass moves them.

    A layer that is called several times moves them as often; ranges of kernels are found anew in each step.
    """
    part = 1.0 - (1.0 - _STEP) ** max(1, len(layer.inbound_nodes))
    named = {str(variable.name.split(":")[0]): variable for variable in layer.non_trainable_weights}
    return [
        (low, named[f"{name.removesuffix('_min')}_max"], part)
        for name, low in named.items()
        if name.endswith("_min") and not low.shape.rank and "kernel" not in name
    ]
