"""Steps that change no variables: they run on copies, so in a thread of their own while another step is traced."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.training.private.private_tensorflow import captures_replaced, unoptimized_calls
from tfaccel.training.runtime import background_thread

_AHEAD_SECONDS = 5.0  # a step that takes longer runs on other rows only if it must


class State:
    """The values of some variables at one moment.

    Args:
        variables: plain TensorFlow variables of this process, and lookup tables.
        values: their values by their ids; of the others, the present ones.

    Example:
        >>> variable = tf.Variable(1.0)
        >>> state = State([variable])
        >>> _ = variable.assign(2.0)
        >>> state.put_back()
        >>> float(variable)
        1.0
    """

    def __init__(self, variables: Sequence[Any], values: Mapping[int, Any] | None = None) -> None:
        self.variables, known = list(variables), values or {}
        self._values = {
            id(variable): known[id(variable)] if id(variable) in known else get_value(variable)
            for variable in self.variables
        }

    def __getitem__(self, variable: Any) -> Any:
        return self._values[id(variable)]

    def put_back(self) -> None:
        """Gives the variables these values again."""
        for variable in self.variables:
            variable.assign(self[variable])


def get_value(variable: Any) -> Any:
    """The present value of a variable, as an array, or of a lookup table."""
    value = variable.numpy()
    return np.array(value, object) if variable.dtype == tf.string else value


class DetachedStep:
    """A concrete function that changes none of the variables that it was traced with.

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
        """The results, and the state after the step.

        Args:
            given: values that take the place of those in `before`, by the ids of their variables.
        """
        return StepAhead(self, data, before, given).result()

    def run(self, data: Any, before: State, given: Mapping[int, Any] | None) -> tuple[Any, State]:
        """The same, in the calling thread."""
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


class StepAhead:
    """Runs a `DetachedStep` in a thread of its own, in which no strategy's scope is open.

    Args:
        given: see `DetachedStep`.
        other: rows that the step may be run on as well; it is if it is quick, nobody waits yet, and tracing leaves more
            than one core idle.
    """

    def __init__(
        self,
        step: DetachedStep,
        data: Any,
        before: State,
        given: Mapping[int, Any] | None = None,
        *,
        other: Any | None = None,
    ) -> None:
        self._is_awaited = False
        self._seconds = 0.0

        def first() -> tuple[Any, State]:
            started = time.monotonic()
            try:
                return step.run(data, before, given)
            finally:
                self._seconds = time.monotonic() - started

        def second() -> tuple[Any, State] | None:
            is_ahead = not self._is_awaited and self._seconds < _AHEAD_SECONDS
            return step.run(other, before, given) if is_ahead else None

        thread = background_thread()
        self._first = thread.submit(first)
        has_idle_cores = len(os.sched_getaffinity(0)) > 2
        self._second = thread.submit(second) if other is not None and has_idle_cores else None
        thread.shutdown(wait=False)

    def wait(self) -> None:
        """Waits for the end of what runs."""
        self._is_awaited = True
        wait([self._first])
        if self._second is not None:
            wait([self._second])

    def result(self) -> tuple[Any, State]:
        """The results, and the state after the step."""
        return self._first.result()

    def of_other(self) -> tuple[Any, State] | None:
        """The same on the other rows; None if the step was not run on them."""
        self.wait()
        return None if self._second is None or self._second.exception() else self._second.result()


def _copy(variable: tf.Variable, value: np.ndarray) -> tf.Variable:
    with tf.device(variable.device):
        return tf.Variable(value, dtype=variable.dtype, shape=variable.shape, trainable=False)
