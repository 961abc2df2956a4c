"""Wrong types of arguments of public functions are refused by name, before anything is done."""

from __future__ import annotations

import functools
import inspect
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from numbers import Real
from typing import Any, Literal, TypeVar

from tfaccel.errors import HardwareError, PlanError, TfaccelError

_Checked = TypeVar("_Checked", bound=Callable[..., Any])
_Kind = tuple[Callable[[Any], bool], str]  # whether a value is of a kind, and how to say it
_ERRORS: dict[str, type[TfaccelError]] = {"Hardware": HardwareError, "Machine": HardwareError, "Plan": PlanError}
_PUBLIC = ("tfaccel", "tfaccel.options", "tfaccel.estimates", "tfaccel.serving")
_SUCH_AS = {"Plan": ", such as tfaccel.default_plan(...)"}
_OTHERS = {"Mapping": (Mapping, "a dict"), "dict": (dict, "a dict")}


def checks_types(error: type[TfaccelError], *, checks_numbers: bool = False) -> Callable[[_Checked], _Checked]:
    """A decorator: arguments must be what the annotations of the function, or of a class's `__init__`, say.

    Checked are arguments that are to be instances of one of tfaccel's classes, functions, dicts or booleans, with None
    where the annotation allows it. Texts, numbers and lists are left to the function, which knows their limits; but no
    array, which cannot be compared with anything, is taken for one.

    Args:
        error: what is raised for a wrong type; for a plan a PlanError, for a machine a HardwareError.
        checks_numbers: whether texts, numbers and lists are checked too.

    Example:
        >>> from tfaccel.errors import WorkloadError
        >>> @checks_types(WorkloadError)
        ... def measured(*, again: bool = False): ...
        >>> measured(again="no")
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: `again` must be True or False. Received: 'no'.
    """

    def decorate(function: Any) -> Any:
        if isinstance(function, type):
            function.__init__ = decorate(function.__init__)  # type: ignore[misc]
            return function
        check = type_check(function, error, checks_numbers=checks_numbers)

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            check(*args, **kwargs)
            return function(*args, **kwargs)

        return checked

    return decorate


def type_check(function: Any, error: type[TfaccelError], *, checks_numbers: bool = False) -> Callable[..., None]:
    """The check of `checks_types`, which takes the function's arguments and raises an error for a wrong type."""
    signature = inspect.signature(function)
    scope = inspect.unwrap(function).__globals__
    get_kinds = functools.cache(lambda name: _kinds(signature.parameters[name].annotation, scope, checks_numbers))

    def check(*args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind_partial(*args, **kwargs).arguments
        except TypeError:  # Python's own message, which the call of the function raises
            return
        for name, value in given.items():
            several = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            for one in value if several else (value,):
                _check(name, one, get_kinds(name), error)

    return check


def _check(name: str, value: Any, kinds: Mapping[str, _Kind], error: type[TfaccelError]) -> None:
    if kinds and not any(is_one(value) for is_one, _ in kinds.values()):
        wanted = list(dict.fromkeys(words for _, words in kinds.values()))
        known = next((_ERRORS[kind] for kind in kinds if kind in _ERRORS), error)
        raise known(f"`{name}` must be {', or '.join(wanted)}. Received: {value!r:.200}.")


def _kinds(annotation: Any, scope: Mapping[str, Any], checks_numbers: bool) -> dict[str, _Kind]:
    """Name -> whether a value is of that kind, and how to say it; empty for an annotation that is not checked."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    names = [part.strip().partition("[")[0].rpartition(".")[2] for part in text.split(" | ")]
    found: dict[str, _Kind] = {}
    for name in names:
        if name == "None":
            found[name] = (lambda value: value is None), "None"
        elif name == "bool":
            found[name] = _is_truth, "True or False"
        elif name in _OTHERS:
            kind, words = _OTHERS[name]
            found[name] = functools.partial(_is_instance, kind=kind), words
        elif name in _SIMPLE_KINDS:
            is_one, words = _SIMPLE_KINDS[name]
            found[name] = (is_one if checks_numbers else _is_no_array), words
        elif name == "Literal" or getattr(scope.get(name), "__origin__", None) is Literal:
            found[name] = functools.partial(_is_instance, kind=str), "a text"
        elif name == "Callable" or getattr(scope.get(name), "__origin__", None) is Callable:
            found[name] = callable, "a function"
        elif name in scope and getattr(scope[name], "__module__", "").startswith("tfaccel."):
            found[name] = functools.partial(_is_instance, kind=scope[name]), _words(scope[name])
        else:
            return {}
    return found


def _words(kind: type) -> str:
    known = (name for name in _PUBLIC if kind.__name__ in dir(import_module(name)))
    return f"a {next(known, kind.__module__)}.{kind.__name__}{_SUCH_AS.get(kind.__name__, '')}"


def _is_instance(value: Any, *, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind)


def _is_truth(value: Any) -> bool:
    """Whether a value is True or False, of Python or of NumPy, or 1 or 0."""
    return (
        isinstance(value, bool) or type(value).__name__ in ("bool", "bool_") or (type(value) is int and value in (0, 1))
    )


def _is_whole_number(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) or (getattr(value, "shape", None) == () and hasattr(value, "__float__"))


def _is_list(value: Any) -> bool:
    if isinstance(value, str | bytes | Mapping | type) or getattr(value, "ndim", None) not in (None, 1):
        return False
    return isinstance(value, Iterable)


def _is_no_array(value: Any) -> bool:
    return isinstance(value, type) or not (isinstance(value, bytes) or getattr(value, "ndim", None))


# How to tell and to say what texts, numbers and lists are.
_SIMPLE_KINDS: dict[str, _Kind] = {
    "int": (_is_whole_number, "a whole number"),
    "float": (_is_number, "a number"),
    "str": (functools.partial(_is_instance, kind=str), "a text"),
    "PathLike": (functools.partial(_is_instance, kind=(str, os.PathLike)), "a pathlib.Path"),
    "Path": (functools.partial(_is_instance, kind=(str, os.PathLike)), "a pathlib.Path"),
    **dict.fromkeys(("list", "tuple", "Sequence", "Iterable"), (_is_list, "a list")),
}
