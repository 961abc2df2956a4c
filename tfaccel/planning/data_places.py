"""The places of model, data and compile arguments in a call, which is checked before Python refuses it less clearly."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from tfaccel.data.given_data import leaves
from tfaccel.errors import WorkloadError
from tfaccel.planning.own_model import COMPILE_ARGUMENTS, is_model

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def data_after_model(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorates a function that takes (model, x, y), and compile arguments by name.

    The decorated one raises WorkloadError for compile arguments in the place of data, and shows the call that is right.

    Example:
        >>> @data_after_model
        ... def measured(workload, x=None, y=None, **options):
        ...     return options
        >>> measured(object, [1.0], [0.0], loss="mse")
        {'loss': 'mse'}
        >>> measured(object, {"loss": "mse"}, [1.0], [0.0])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: ... Write measured(build_model, x, y, **compile_args).
    """
    is_of_class = next(iter(inspect.signature(function).parameters)) == "cls"

    @functools.wraps(function)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        _check_places(function.__qualname__, args[is_of_class:])
        return function(*args, **kwargs)

    return checked


def _check_places(name: str, given: tuple[Any, ...]) -> None:
    first = 1 if given and (callable(given[0]) or is_model(given[0])) else len(given)
    for place, value in enumerate(given[first:], start=first + 1):
        if _are_compile_arguments(value):
            what, call = f"a dictionary of compile arguments ({', '.join(map(str, value))})", "**compile_args"
        elif callable(value) and not hasattr(value, "shape"):
            what, call = f"the function {getattr(value, '__name__', type(value).__name__)}", "**compile_args()"
        else:
            continue
        raise WorkloadError(
            "x and y come after the model, and compile arguments are passed by name. "
            f"Received: {what} as argument {place}. Write {name}(build_model, x, y, {call})."
        )


def _are_compile_arguments(value: Any) -> bool:
    """Whether a value is a dictionary of compile arguments; one of arrays may have the same names."""
    is_named = isinstance(value, Mapping) and any(name in COMPILE_ARGUMENTS for name in value)
    return is_named and not any(hasattr(leaf, "shape") for leaf in leaves(value))
