"""Inference latency of a model for one example."""

from __future__ import annotations

import statistics
import time
from typing import Any

import keras
import tensorflow as tf

from tfaccel.graph_function import graph_function

_WARM_UPS, _CALLS = 3, 30


def latency_seconds(model: keras.Model, batch_spec: Any) -> float:
    """The median time to call the model on one all-zeros example, on the devices of this process.

    Args:
        model: a built model.
        batch_spec: the spec of a batch: inputs, targets and, optionally, sample weights.
    """
    inputs = keras.utils.unpack_x_y_sample_weight(batch_spec)[0]
    specs = tf.nest.map_structure(lambda spec: tf.TensorSpec([1, *spec.shape[1:]], spec.dtype), inputs)
    example = tf.nest.map_structure(lambda s: tf.zeros([n or 1 for n in s.shape], s.dtype), specs)
    call = graph_function(lambda x: model(x, training=False), jit_compile=bool(model.jit_compile))
    times = []
    for _ in range(_WARM_UPS + _CALLS):
        started = time.perf_counter()
        tf.nest.map_structure(lambda tensor: tensor.numpy(), call(example))
        times.append(time.perf_counter() - started)
    return statistics.median(times[_WARM_UPS:])
