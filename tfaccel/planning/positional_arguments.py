"""The places of model, compile arguments and data in a call, checked before Python refuses it less clearly."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from tfaccel.argument_types import type_check
from tfaccel.data.given_data import leaves
from tfaccel.errors import WorkloadError
from tfaccel.known_names import check_names
from tfaccel.planning.own_model import (
    COMPILE_ARGUMENTS,
    OF_THE_PLAN,
    CompiledByModel,
    FreshArguments,
    RebuiltModel,
    described,
    is_model,
)

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_TOGETHER = "compile_args"  # the name under which a function in the second place goes on


def data_after_model(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorates a function that takes (model, x, y), and compile arguments by name.

    The decorated one also takes (model, compile_args, x, y): a dictionary with arguments of `Model.compile`, which go
    on by their names, or a function that returns one, which goes on as `compile_args`. In other places they are
    refused with a WorkloadError that shows the right call. So are arguments of the wrong type (see `checks_types`),
    except for a classmethod.

    Example:
        >>> @data_after_model
        ... def measured(workload, x=None, y=None, **options):
        ...     return options
        >>> measured(object, [1.0], [0.0], loss="mse"), measured(object, {"loss": "mse"}, [1.0], [0.0])
        ({'loss': 'mse'}, {'loss': 'mse'})
        >>> measured(object, [1.0], [0.0], {"loss": "mse"})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: ... Write measured(build_model, compile_args, x, y).
    """
    is_of_class = next(iter(inspect.signature(function).parameters)) == "cls"
    check_types = type_check(function, WorkloadError)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> _Result:
        placed, named = _in_place(function.__qualname__, args[is_of_class:], kwargs)
        if not is_of_class:
            check_types(*placed, **named)
        return function(*args[:is_of_class], *placed, **named)

    return checked


def _in_place(name: str, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The model and its data by place, and everything else by name.

    Raises:
        WorkloadError: for compile arguments in the place of data, or without data, or given twice.
    """
    if not given or not (callable(given[0]) or is_model(given[0])):
        return list(given), dict(named)
    model, *data = given
    right = f"Write {name}(build_model, compile_args, x, y)."
    if data and _are_compile_arguments(data[0]):
        together, *data = data
        if (data[0] if data else named.get("x")) is None:
            raise WorkloadError(
                f"Compile arguments come with the data of a model. Received: {_text(together)} without x. {right}"
            )
        named = _with_named(together, named)
    for place, value in enumerate(data, start=len(given) - len(data) + 1):
        if _are_compile_arguments(value) or (callable(value) and not hasattr(value, "shape")):
            raise WorkloadError(
                "Compile arguments come directly after the model, or are passed by name; x and y come after them. "
                f"Received: {_text(value)} as argument {place}. {right}"
            )
    return [model, *data], dict(named)


def _are_compile_arguments(value: Any) -> bool:
    """Whether a value is a dictionary of compile arguments, or a function that may return one.

    A dictionary of arrays, or of lists of numbers, may have the same names.
    """
    if isinstance(value, Mapping):
        parts = [leaf for name, part in value.items() if name != "loss_weights" for leaf in leaves(part)]
        is_data = any(hasattr(leaf, "shape") or type(leaf) in (int, float) for leaf in parts)
        return not is_data and any(name in COMPILE_ARGUMENTS for name in value)
    return callable(value) and not hasattr(value, "shape") and not isinstance(value, type) and not is_model(value)


def _with_named(together: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, together with those of a dictionary or with a function."""
    if not isinstance(together, Mapping):
        together = {_TOGETHER: together}
    else:
        known = (*COMPILE_ARGUMENTS, *OF_THE_PLAN)
        check_names(together, known, WorkloadError, "Model.compile has no argument {!r}.")
    for one in together:
        if one in named:
            raise WorkloadError(
                f"{one} is given twice: after the model and by name. Received: {together[one]!r:.100} and "
                f"{named[one]!r:.100}. Leave out one of them."
            )
    return {**named, **together}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dictionary of compile arguments ({', '.join(map(str, value))})"
    return f"the function {getattr(value, '__name__', type(value).__name__)}"


def compile_function(
    build_model: Callable[[], Any], given: Mapping[str, Any]
) -> tuple[Callable[..., dict[str, Any]], dict[str, Any]]:
    """The `compile_args` of a workload, and what of it must not change when a run is resumed, as JSON values.

    Args:
        build_model: that of the workload.
        given: compile arguments by name, or `compile_args`, a function that returns them. Empty for a model that is
            compiled.

    Raises:
        WorkloadError: for unknown arguments, and for arguments beside the function that returns all of them.

    Example:
        >>> function, identity = compile_function(object, {"loss": "mse"})
        >>> function(), identity
        ({'loss': 'mse'}, {'loss': 'mse'})
    """
    named = dict(given)
    function = named.pop(_TOGETHER, None)
    if isinstance(function, Mapping):
        named, function = _with_named(function, named), None
    if function is None:
        named = {**build_model.compile_args, **named} if isinstance(build_model, RebuiltModel) else named
        fresh = FreshArguments(named)
        return (fresh, fresh.identity) if named else (CompiledByModel(build_model), {})
    if not callable(function):
        raise WorkloadError(
            "compile_args must be a dict of arguments of Model.compile, or a function that returns one. "
            f"Received: compile_args={function!r:.200}."
        )
    if named:
        raise WorkloadError(
            f"{_text(function)} returns all compile arguments. Received as well: {', '.join(named)}. Return them too."
        )
    return function, {_TOGETHER: described(function)}
