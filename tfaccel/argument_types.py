"""Wrong types of arguments of public functions are refused by name, before anything is done."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from tfaccel.errors import HardwareError, PlanError, TfaccelError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_ERRORS: dict[str, type[TfaccelError]] = {"Hardware": HardwareError, "Machine": HardwareError, "Plan": PlanError}
_SUCH_AS = {"Plan": ", such as tfaccel.default_plan(...)"}
_OTHERS = {"Mapping": (Mapping, "a dict"), "dict": (dict, "a dict")}


def checks_types(error: type[TfaccelError]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A decorator: arguments must be what the annotations of the function say.

    Checked are arguments that are to be instances of one of tfaccel's classes, functions, dicts or booleans, with None
    where the annotation allows it. Texts, numbers and lists are left to the function, which knows their limits.

    Args:
        error: what is raised for a wrong type; for a plan a PlanError, for a machine a HardwareError.

    Example:
        >>> from tfaccel.errors import WorkloadError
        >>> @checks_types(WorkloadError)
        ... def measured(*, again: bool = False): ...
        >>> measured(again="no")
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: `again` must be True or False. Received: 'no'.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)
        scope = inspect.unwrap(function).__globals__

        @functools.wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                given = signature.bind_partial(*args, **kwargs).arguments
            except TypeError:  # Python's own message, which the call below raises
                given = {}
            for name, value in given.items():
                kinds = _kinds(signature.parameters[name].annotation, scope)
                if kinds and not any(is_one(value) for is_one, _ in kinds.values()):
                    wanted = [text for _, text in kinds.values()]
                    known = next((_ERRORS[kind] for kind in kinds if kind in _ERRORS), error)
                    raise known(f"`{name}` must be {', or '.join(wanted)}. Received: {value!r:.200}.")
            return function(*args, **kwargs)

        return checked

    return decorate


def _kinds(annotation: Any, scope: Mapping[str, Any]) -> dict[str, tuple[Callable[[Any], bool], str]]:
    """Name -> whether a value is of that kind, and how to say it; empty for an annotation that is not checked."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    names = [part.strip().partition("[")[0].rpartition(".")[2] for part in text.split(" | ")]
    found: dict[str, tuple[Callable[[Any], bool], str]] = {}
    for name in names:
        if name == "None":
            found[name] = (lambda value: value is None), "None"
        elif name == "bool":
            found[name] = _is_truth, "True or False"
        elif name in _OTHERS:
            kind, words = _OTHERS[name]
            found[name] = functools.partial(_is_instance, kind=kind), words
        elif name == "Callable" or getattr(scope.get(name), "__origin__", None) is Callable:
            found[name] = callable, "a function"
        elif name in scope and getattr(scope[name], "__module__", "").startswith("tfaccel."):
            found[name] = functools.partial(_is_instance, kind=scope[name]), _words(scope[name])
        else:
            return {}
    return found


def _words(kind: type) -> str:
    is_public = kind.__name__ in dir(sys.modules["tfaccel"])
    return f"a {'tfaccel' if is_public else kind.__module__}.{kind.__name__}{_SUCH_AS.get(kind.__name__, '')}"


def _is_instance(value: Any, *, kind: type) -> bool:
    return isinstance(value, kind)


def _is_truth(value: Any) -> bool:
    """Whether a value is True or False, of Python or of NumPy, or 1 or 0."""
    return (
        isinstance(value, bool) or type(value).__name__ in ("bool", "bool_") or (type(value) is int and value in (0, 1))
    )
