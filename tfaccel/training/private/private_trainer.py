"""Private parts of Keras's trainer: `fit`, `evaluate`, `predict` and the methods for one batch, replaced.

Keras decorates the first three with a function that calls what its closure holds. Changing that reaches every caller:
`super()`, a method that was saved before, and the wrapper of a library that patches `keras.Model.fit`. The others have
no such closure: the class that defines them gets others.
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
ON_BATCH = ("train_on_batch", "test_on_batch", "predict_on_batch")

_lock = threading.Lock()
_methods: dict[int, Mapping[str, Callable[..., Any]]] = {}  # by the id of the model or strategy that they are for
_originals: dict[str, Any] = {}  # Keras's methods, by name, while others stand for them


@contextlib.contextmanager
def methods_in_place_of_keras(owner: Any, methods: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Within the block, these methods stand for Keras's of a model, or of a strategy's models without their own.

    Args:
        owner: the model, or the strategy.
        methods: by name; Keras's own run for names that are not there.
    """
    with _lock:
        before = _methods.get(id(owner))
        _methods[id(owner)] = methods
        if not _originals:
            for name in (*METHODS, *ON_BATCH):
                _originals[name] = _get_cell(name).cell_contents if name in METHODS else getattr(keras.Model, name)
                _replace(name, _dispatching(name, _originals[name]))
    try:
        yield
    finally:
        with _lock:
            if before is not None:
                _methods[id(owner)] = before
            else:
                del _methods[id(owner)]
            if not _methods:
                for name, original in _originals.items():
                    _replace(name, original)
                _originals.clear()


def _dispatching(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        methods = _methods.get(id(model), _methods.get(id(model.distribute_strategy), {}))
        return methods.get(name, original)(model, *args, **kwargs)

    return call


def _replace(name: str, method: Callable[..., Any]) -> None:
    if name in METHODS:
        _get_cell(name).cell_contents = method
    else:
        setattr(next(kind for kind in keras.Model.__mro__ if name in vars(kind)), name, method)


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
