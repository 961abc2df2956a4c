"""A traced step that runs on copies of the variables that it was traced with.

The variables of the model keep their values, so that such a step may run in a thread of its own, while another step is
traced.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.training.private.private_functions import captures_replaced, unoptimized_calls
from tfaccel.training.proof.state import State, get_value
from tfaccel.training.runtime import background_thread


class DetachedStep:
    """A concrete function that changes none of the variables that it was traced with.

    Args:
        function: the concrete function of the step.

    Example:
        >>> total = tf.Variable(1.0)
        >>> add = tf.function(lambda amount: total.assign_add(amount)).get_concrete_function(2.0)
        >>> result, after = DetachedStep(add)(2.0, State([total]))
        >>> float(result), float(after[total]), float(total)
        (3.0, 3.0, 1.0)
    """

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, data: Any, before: State, given: Mapping[int, Any] | None = None) -> tuple[Any, State]:
        """The results, and the state after the step; see `start`."""
        return self.start(data, before, given).result()

    def start(self, data: Any, before: State, given: Mapping[int, Any] | None = None) -> Future[tuple[Any, State]]:
        """Runs the step in a thread of its own, in which no strategy's scope is open.

        Args:
            data: a batch.
            before: the state that the step begins with.
            given: values that take the place of those in `before`, by the ids of their variables.
        """
        thread = background_thread()
        try:
            return thread.submit(self._run, data, before, given)
        finally:
            thread.shutdown(wait=False)

    def _run(self, data: Any, before: State, given: Mapping[int, Any] | None) -> tuple[Any, State]:
        handles = {id(one) for one in self._function.captured_inputs}
        read = [one for one in before.variables if isinstance(one, tf.Variable) and id(one.handle) in handles]
        tables = [one for one in before.variables if not isinstance(one, tf.Variable)]
        known = {id(one): before[one] for one in before.variables} | dict(given or {})
        with tf.init_scope():
            copies = {id(one): _copy(one, known[id(one)]) for one in read}
        kept = State(tables)
        for table in tables:
            table.assign(before[table])
        try:
            replaced = {id(one.handle): copies[id(one)].handle for one in read}
            with unoptimized_calls(), captures_replaced(self._function, replaced):
                results = self._function(data)
            changed = {place: get_value(copy) for place, copy in copies.items()}
            return results, State(before.variables, known | changed | {id(one): get_value(one) for one in tables})
        finally:
            kept.put_back()


def _copy(variable: tf.Variable, value: np.ndarray) -> tf.Variable:
    with tf.device(variable.device):
        return tf.Variable(value, dtype=variable.dtype, shape=variable.shape, trainable=False)
