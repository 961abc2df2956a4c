"""Replaces `keras.Model.fit`, whatever model a script makes, for one call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import keras


class Done(BaseException):
    """Ends a script after its first `fit`, which no handler of exceptions takes for a failure."""


def replace_fit(train: Callable[[keras.Model, dict[str, Any]], None]) -> None:
    """Makes the next `Model.fit` call `train(model, arguments)` and raise `Done`; later ones are Keras's again.

    Args:
        train: gets the model and the arguments of `fit` by name.
    """
    original = keras.Model.fit

    def stopped(model: keras.Model, *args: Any, **kwargs: Any) -> NoReturn:
        keras.Model.fit = original
        arguments = inspect.signature(original).bind(model, *args, **kwargs).arguments
        train(model, {name: value for name, value in arguments.items() if name != "self"})
        raise Done

    keras.Model.fit = stopped
