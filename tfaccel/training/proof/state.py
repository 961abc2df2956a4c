"""The values of variables, taken and put back."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.training.private import private_api
from tfaccel.training.steps.overrides import instance_attributes


class State:
    """The values of some variables at one moment.

    Args:
        variables: plain TensorFlow variables of this process.

    Example:
        >>> variable = tf.Variable(1.0)
        >>> state = State([variable])
        >>> _ = variable.assign(2.0)
        >>> state.put_back()
        >>> float(variable)
        1.0
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self._variables = list(variables)
        self._values = {id(variable): variable.numpy() for variable in self._variables}

    def __getitem__(self, variable: tf.Variable) -> np.ndarray:
        return self._values[id(variable)]

    def put_back(self) -> None:
        """Gives the variables these values again."""
        for variable in self._variables:
            variable.assign(self[variable])


CALLS_PYTHON = "it calls Python code while it runs (tf.py_function), which would be called once more"


class CallsPython(Exception):
    """While tracing: a step calls a Python function whenever it runs."""


@contextlib.contextmanager
def without_side_effects(model: keras.Model) -> Iterator[None]:
    """While tracing a step once more: what its Python code prints, writes and keeps is not seen twice.

    Raises:
        CallsPython: within the block, where the step calls a Python function at each run.
    """

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise CallsPython(CALLS_PYTHON)

    quiet: dict[str, Callable[..., Any]] = dict.fromkeys(("py_function", "numpy_function"), refuse)
    quiet["print"] = lambda *args, **kwargs: None
    numbers, of_numpy = random.getstate(), np.random.get_state()
    with (
        contextlib.redirect_stdout(None),
        instance_attributes(tf, quiet),
        tf.summary.record_if(False),
        _kept_attributes(model),
    ):
        try:
            yield
        finally:
            random.setstate(numbers)
            np.random.set_state(of_numpy)


@contextlib.contextmanager
def _kept_attributes(model: keras.Model) -> Iterator[None]:
    """Restores the numbers, lists, dicts and sets that the Python code of a step may have changed."""
    numbers: list[tuple[dict[str, Any], str, Any]] = []
    containers: list[tuple[Any, Any]] = []
    for holder, name in _names_of_user(model):
        value = holder.get(name)
        if type(value) in (int, float):
            numbers.append((holder, name, value))
        elif isinstance(value, list | dict | set):
            containers.append((value, value.copy()))
    try:
        yield
    finally:
        for holder, name, value in numbers:
            if holder.get(name) is not value:
                holder[name] = value
        for value, before in containers:
            kind: Any = next(one for one in (list, dict, set) if isinstance(value, one))
            if list(map(id, value)) != list(map(id, before)) or kind is dict:  # bypasses Keras's tracking
                kind.clear(value)
                (kind.extend if kind is list else kind.update)(value, before)


def _names_of_user(model: keras.Model) -> Iterator[tuple[dict[str, Any], str]]:
    """Namespaces, and names in them, that the code of a step can refer to: attributes, globals, closures."""
    layers = [layer for layer in private_api.all_layers(model) if not _is_of_keras(type(layer))]
    for layer in layers:
        yield from ((vars(layer), name) for name in list(vars(layer)) if not name.startswith("_"))
    functions = [getattr(type(one), name, None) for one in layers for name in ("train_step", "test_step", "call")]
    for function in (*functions, *keras.tree.flatten(getattr(model, "loss", None))):
        if not hasattr(function, "__code__") or _is_of_keras(function):
            continue
        yield from ((function.__globals__, name) for name in function.__code__.co_names)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                yield {name: cell.cell_contents}, name


def _is_of_keras(defined: Any) -> bool:
    return str(defined.__module__).partition(".")[0] in ("keras", "tensorflow", "tfaccel")
