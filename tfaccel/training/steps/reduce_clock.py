"""The time that a worker's steps spend in reductions over the workers: waiting for the others, and in the transfer.

A reduction starts when its inputs are there, and ends with its results; both times are taken inside the graph. What is
reduced has no consumer that Grappler could fuse it with, so the numbers stay the same. On GPUs, operations are only
launched at these times, so nothing is measured there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class ReduceClock:
    """Sums the time that the reductions of one worker take. Create it outside of any strategy's scope.

    Attributes:
        variable: the sum, in seconds.
    """

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("/CPU:0"):
            self.variable = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    @property
    def seconds(self) -> float:
        """The time of all reductions so far."""
        return float(self.variable.numpy())

    def timed(self, inputs: list[Any], reduce: Callable[[], Any]) -> Any:
        """What `reduce()` returns; the time from when the inputs are there until the results are is added.

        Args:
            inputs: this worker's tensors, dense or `IndexedSlices`.
            reduce: reduces them.
        """
        if tf.executing_eagerly():
            return reduce()
        started = _time_after(inputs)
        results = reduce()
        seconds = _time_after(results) - started
        # By its handle, so that it is none of the graph's variables: a time is no state, which could be compared.
        tf.raw_ops.AssignAddVariableOp(resource=self.variable.handle, value=seconds)
        return results


def _time_after(values: Any) -> tf.Tensor:
    """The time at which the values are there."""
    tensors = [one for one in tf.nest.flatten(values, expand_composites=True) if isinstance(one, tf.Tensor)]
    with tf.device("/CPU:0"), tf.control_dependencies(tensors):
        return tf.timestamp()
