"""The values of variables, taken and put back, and traced steps that leave them as they are.

A `DetachedStep` runs on copies of the variables that it was traced with. The variables of the model keep their values,
so that it may run in a thread of its own, while another step is traced.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.training.private import private_api
from tfaccel.training.private.private_tensorflow import captures_replaced, in_trace, same_trace, unoptimized_calls
from tfaccel.training.runtime import background_thread
from tfaccel.training.steps.merged_metrics import metrics_in
from tfaccel.training.steps.model_parts import get_optimizers, stepping_optimizers
from tfaccel.training.steps.overrides import instance_attributes


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


_MAX_SIZE = 100_000  # of a list or an array that the code of a step may change while it is traced
_PLAIN = (int, float, complex, bool, str, bytes, tuple, type(None))


def get_value(variable: Any) -> Any:
    """The present value of a variable, as an array, or of a lookup table."""
    value = variable.numpy()
    return np.array(value, object) if variable.dtype == tf.string else value


CALLS_PYTHON = "it calls Python code while it runs (tf.py_function), which would be called once more"


class CallsPython(Exception):
    """While tracing: a step calls a Python function whenever it runs."""


@contextlib.contextmanager
def without_side_effects(model: keras.Model) -> Iterator[None]:
    """While tracing a step once more: what its Python code prints, writes and keeps is not seen twice.

    Other threads, such as the one that prepares the data of the next epoch, print and call what they like.

    Raises:
        CallsPython: within the block, where the step calls a Python function at each run.
    """

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise CallsPython(CALLS_PYTHON)

    traces = same_trace()
    quiet: dict[str, Callable[..., Any]] = dict.fromkeys(("py_function", "numpy_function"), refuse)
    quiet["print"] = lambda *args, **kwargs: None
    record_if = in_trace(traces, lambda condition: contextlib.nullcontext(), tf.summary.record_if)
    numbers, of_numpy = random.getstate(), np.random.get_state()
    with (
        _quiet_output(traces),
        instance_attributes(tf, {name: in_trace(traces, one, getattr(tf, name)) for name, one in quiet.items()}),
        tf.summary.record_if(False),
        instance_attributes(tf.summary, {"record_if": record_if}),
        _kept_attributes(model),
    ):
        try:
            yield
        finally:
            random.setstate(numbers)
            np.random.set_state(of_numpy)


class _Output:
    """Standard output, to which nothing is written where `is_quiet()` holds."""

    def __init__(self, output: Any, is_quiet: Callable[[], bool]) -> None:
        self._output, self.is_quiet = output, is_quiet

    def write(self, text: str) -> int:
        return len(text) if self.is_quiet() else self._output.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


@contextlib.contextmanager
def _quiet_output(traces: Callable[[], bool]) -> Iterator[None]:
    output = _Output(sys.stdout, traces)
    with contextlib.redirect_stdout(None if sys.stdout is None else output):
        try:
            yield
        finally:
            output.is_quiet = lambda: False  # others may keep it


@contextlib.contextmanager
def _kept_attributes(model: keras.Model) -> Iterator[None]:
    """Restores the values, lists, dicts, sets and arrays that the Python code of a step may have changed."""
    values: list[tuple[dict[str, Any], str, Any]] = []
    containers: list[tuple[Any, Any]] = []
    for holder, name in _names_of_user(model):
        value = holder.get(name)
        if type(value) in _PLAIN:
            values.append((holder, name, value))
        else:
            containers += [(one, one.copy()) for one in _containers_in(value)]
    try:
        yield
    finally:
        for holder, name, value in values:
            now = holder.get(name)
            if now is not value and (type(now) in _PLAIN or isinstance(now, tf.Tensor)):
                holder[name] = value
        for value, before in containers:
            _restore(value, before)


def _containers_in(value: Any, depth: int = 3) -> Iterator[Any]:
    """A list, dict, set or array, and those in it; larger ones are data."""
    value = getattr(value, "__wrapped__", value) if isinstance(value, dict) else value  # what TensorFlow has wrapped
    if not isinstance(value, list | dict | set | tuple | np.ndarray) or _size(value) > _MAX_SIZE:
        return
    if not isinstance(value, tuple):
        yield value
    if depth and isinstance(value, list | dict | tuple):
        for one in list(value.values()) if isinstance(value, dict) else value:
            yield from _containers_in(one, depth - 1)


def _size(value: Any) -> int:
    return value.size if isinstance(value, np.ndarray) else len(value)


def _restore(value: Any, before: Any) -> None:
    """Gives a container its contents from before, without Keras's tracking."""
    if isinstance(value, np.ndarray):
        if value.flags.writeable:
            value[...] = before
        return
    kind: Any = next(one for one in (list, dict, set) if isinstance(value, one))
    if list(map(id, value)) != list(map(id, before)) or kind is dict:
        kind.clear(value)
        (kind.extend if kind is list else kind.update)(value, before)


class _Cell(dict[str, Any]):
    """The namespace of one variable of a closure."""

    def __init__(self, name: str, cell: types.CellType) -> None:
        super().__init__({name: cell.cell_contents})
        self._cell = cell

    def get(self, name: str, default: Any = None) -> Any:
        return self._cell.cell_contents

    def __setitem__(self, name: str, value: Any) -> None:
        self._cell.cell_contents = value


def _names_of_user(model: keras.Model) -> Iterator[tuple[dict[str, Any], str]]:
    """Namespaces, and names in them, that the code of a step can refer to: attributes, globals, closures.

    The code is that of the user's layers, losses, metrics and optimizers, and of the functions that it calls.
    """
    optimizers, losses = list(get_optimizers(model).values()), keras.tree.flatten(getattr(model, "loss", None))
    get_parts = [part for optimizer in optimizers for part in stepping_optimizers(optimizer)]
    rates = [private_api.learning_rate_schedule(one) or private_api.learning_rate_function(one) for one in get_parts]
    parts = [*private_api.all_layers(model), *metrics_in(model), *optimizers, *rates, *losses]
    own = [one for one in parts if hasattr(one, "__dict__") and not _is_of_keras(type(one))]
    functions: list[Any] = [one for one in (*losses, *rates) if hasattr(one, "__code__")]
    packages = {_get_package(one) for one in (*map(type, own), *functions)}
    for one in own:
        yield from ((vars(one), name) for name in list(vars(one)) if name not in _names_of_keras())
        for kind in type(one).__mro__:
            functions += [] if _is_of_keras(kind) else vars(kind).values()
    seen: set[int] = set()
    while functions:
        function = functions.pop()
        function = inspect.unwrap(getattr(function, "python_function", function))  # of a `tf.function`
        if not inspect.isfunction(function) or id(function.__code__) in seen or _get_package(function) not in packages:
            continue
        seen.add(id(function.__code__))
        names = [(function.__globals__, name) for name in function.__code__.co_names if name in function.__globals__]
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                names.append((_Cell(name, cell), name))
        functions += [holder.get(name) for holder, name in names]
        yield from names


@functools.cache
def _names_of_keras() -> frozenset[str]:
    """The attributes that Keras itself gives to layers, metrics, losses and optimizers."""
    kinds = (keras.Model, keras.optimizers.SGD, keras.metrics.Mean, keras.losses.MeanSquaredError)
    return frozenset(name for kind in kinds for name in vars(kind()))


def _is_of_keras(defined: Any) -> bool:
    return _get_package(defined) in ("keras", "tensorflow", "tfaccel")


def _get_package(defined: Any) -> str:
    return str(defined.__module__).partition(".")[0]


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
