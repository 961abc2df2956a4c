"""Private parts of Keras's trainer: `fit`, `evaluate` and `predict` replaced.

Keras decorates these methods with a function that calls what its closure holds. Changing that reaches every caller:
`super()`, a method that was saved before, and the wrapper of a library that patches `keras.Model.fit`.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import keras

from tfaccel.tested_versions import private_part

METHODS = ("fit", "evaluate", "predict")

_lock = threading.Lock()
_methods: dict[int, Mapping[str, Callable[..., Any]]] = {}  # by the id of the model that they stand in for
_originals: dict[str, Any] = {}  # what the closures hold otherwise; empty unless there is such a model


@contextlib.contextmanager
def methods_in_place_of_keras(model: keras.Model, methods: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Within the block, Keras's methods, called for this model, call these; an empty mapping brings Keras's back."""
    with _lock:
        before = _methods.get(id(model))
        _methods[id(model)] = methods
        if not _originals:
            for name in METHODS:
                cell = _get_cell(name)
                _originals[name] = cell.cell_contents
                cell.cell_contents = _dispatching(name, cell.cell_contents)
    try:
        yield
    finally:
        with _lock:
            if before is not None:
                _methods[id(model)] = before
            else:
                del _methods[id(model)]
            if not _methods:
                for name, original in _originals.items():
                    _get_cell(name).cell_contents = original
                _originals.clear()


def _dispatching(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        return _methods.get(id(model), {}).get(name, original)(model, *args, **kwargs)

    return call


def _get_cell(name: str) -> Any:
    """The cell of the closure that holds a method of Keras's trainer."""
    from keras.src.backend.tensorflow import trainer

    method = private_part(trainer, f"TensorFlowTrainer.{name}", renamed="Trainer")
    while hasattr(method, "__wrapped__") and hasattr(method.__wrapped__, "__wrapped__"):  # patched there, too
        method = method.__wrapped__
    return private_part(method, "__closure__")[private_part(method, "__code__").co_freevars.index("fn")]


class Done(BaseException):
    """Ends a script after its first `fit`, which no handler of exceptions takes for a failure."""


def replace_fit(train: Callable[[keras.Model, dict[str, Any]], None]) -> None:
    """Makes the next `Model.fit` call `train(model, arguments)` and raise `Done`; later ones are Keras's again."""
    original = keras.Model.fit

    def stopped(model: keras.Model, *args: Any, **kwargs: Any) -> NoReturn:
        keras.Model.fit = original
        arguments = inspect.signature(original).bind(model, *args, **kwargs).arguments
        train(model, {name: value for name, value in arguments.items() if name != "self"})
        raise Done

    keras.Model.fit = stopped
