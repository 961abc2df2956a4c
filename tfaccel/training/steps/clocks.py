"""Times that are measured inside a step's graph: waiting for the next batch, and for reductions over the workers.

A step and the fetch of the next batch run in parallel. The wait is the time from the end of the step until the next
batch is there. On a CPU the step has ended when all its operations with side effects have: the assignments of weights,
metrics and optimizer variables. On a GPU, operations are only launched at that time; there the time counts from when
the loss is known on the host, for which no step waits. The GPU may then still compute gradients, or later steps, so
this is an estimate, which `Utilization` limits to the GPU's idle time.

Only operations without outputs and calls of functions are waited for. A control dependency on any other operation would
keep Grappler from fusing it, and change the last bits of the results.

A reduction starts when its inputs are there, and ends with its results. What is reduced has no consumer that Grappler
could fuse it with, so the numbers stay the same. On GPUs, operations are only launched at these times, so reductions
are not measured there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

_CALLS = ("StatefulPartitionedCall", "While", "If", "Case", "XlaLaunch")


class InputClock:
    """Measures the step that is traced after its creation: `ended`, then `waited`.

    Args:
        on_gpu: whether the step's device only launches operations.
    """

    def __init__(self, *, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self._num_before = len(_operations())
        self._ends: list[tf.Operation] = []

    def ended(self) -> None:
        """Takes note of the operations that end the step."""
        new = _operations()[self._num_before :]
        self._ends = [operation for operation in new if not operation.outputs or operation.type in _CALLS]

    def waited(self, state: Any, finite: tf.Tensor) -> tf.Tensor:
        """Seconds from the end of the step until the next batch is there, as a float64 scalar.

        Args:
            state: the loop state after the step's batch was fetched; see `GraphBatches.fetch`.
        """
        if not state:  # batches of arrays are always there
            return tf.constant(0.0, tf.float64)
        there = tf.nest.flatten(state[0], expand_composites=True)  # to look into it would copy a batch from a GPU
        with tf.device("/CPU:0"):
            ends: list[Any] = [tf.identity(finite)] if self._on_gpu else self._ends
            with tf.control_dependencies(ends):
                ended = tf.timestamp()
            with tf.control_dependencies([ended, *there]):
                return tf.timestamp() - ended


def _operations() -> list[tf.Operation]:
    """The operations of the graph being traced so far."""
    found: list[tf.Operation] = [] if tf.executing_eagerly() else tf.compat.v1.get_default_graph().get_operations()
    return found


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
        """What `reduce()` returns; the time from when the inputs are there until the results are is added."""
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
