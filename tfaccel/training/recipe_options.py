"""The options of a recipe: how its parameters' annotations validate them, and how a run records them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from tfaccel.errors import WorkloadError
from tfaccel.known_names import check_names
from tfaccel.local_path import local_path
from tfaccel.planning.option_checks import check_choice, check_counts, check_fractions, shortened

_COUNT, _FRACTION = "a count", "a fraction"

Count = Annotated[int, _COUNT]
"""The type of an option that counts something: a whole number of at least 1."""

Fraction = Annotated[float, _FRACTION]
"""The type of an option that is a fraction: a number from 0 to below 1."""

DataPath = str | os.PathLike[str]
"""The type of an option that is a file, a folder, or the name of a dataset ("tfds:mnist")."""

_PLAIN: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
}


def bound_options(
    function: Callable[..., Any], given: Mapping[str, Any], *, beside: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The value of each option of a recipe: the given value, or the default.

    Args:
        function: the recipe's function; its parameters are the options.
        given: option -> value.
        beside: parameters that are not options.

    Raises:
        WorkloadError: if an option is unknown, a required option is missing, or the annotation does not allow a value.

    Example:
        >>> def workload(*, width: Count = 8, dropout: Fraction = 0.5): ...
        >>> bound_options(workload, {"width": 3})
        {'width': 3, 'dropout': 0.5}
        >>> bound_options(workload, {"width": 0})
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: `width` must be a whole number of at least 1. Received: width=0.
    """
    signature = inspect.signature(function).parameters
    parameters = {name: one for name, one in signature.items() if name not in beside}
    check_names(given, list(parameters), WorkloadError, "There is no option {!r}.")
    missing = [name for name, one in parameters.items() if one.default is one.empty and name not in given]
    if missing:
        raise WorkloadError(f"`{missing[0]}` has no default. Give {missing[0]}=VALUE.")
    hints = get_type_hints(function, include_extras=True)
    options = {name: given.get(name, one.default) for name, one in parameters.items()}
    for name, value in options.items():
        _check(name, value, hints.get(name))
    return options


def check_data_options(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    data_dir_only: tuple[str, ...],
    bundled_only: tuple[str, ...],
) -> None:
    """Refuses an option that would have no effect on the data that were chosen.

    Args:
        function: the recipe's function; an option that has its default is never refused.
        options: option -> value, with defaults.
        data_dir_only: options that apply only where `data_dir` is given.
        bundled_only: options that apply only where it is not.

    Raises:
        WorkloadError: for such an option.

    Example:
        >>> def workload(*, data_dir: str | None = None, target: str | None = None): ...
        >>> given = {"data_dir": None, "target": "y"}
        >>> check_data_options(workload, given, data_dir_only=("target",), bundled_only=())  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: `target` is for your own data. Received: target='y' without data_dir. ...
    """
    parameters = inspect.signature(function).parameters
    data_dir = options.get("data_dir")
    for name in data_dir_only if data_dir is None else bundled_only:
        if options[name] == parameters[name].default:
            continue
        received = f"Received: {name}={shortened(options[name])}"
        if data_dir is None:
            raise WorkloadError(
                f"`{name}` is for your own data. {received} without data_dir. Add data_dir, or leave {name} out."
            )
        raise WorkloadError(
            f"`{name}` is for the bundled data. {received} with data_dir={shortened(str(data_dir))}. Leave one of "
            "them out."
        )


def recorded_options(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as JSON values, with paths made absolute, so that they do not depend on the working directory.

    An option is a path if its annotation includes `os.PathLike`; names of datasets ("tfds:mnist") are unchanged.

    Example:
        >>> def workload(*, data_dir: str | os.PathLike[str] | None = None): ...
        >>> recorded_options(workload, {"data_dir": "/data/../images"})
        {'data_dir': '/images'}
    """
    hints = get_type_hints(function)
    return {name: data_place(value) if _is_path(hints.get(name)) else value for name, value in options.items()}


def _is_path(hint: Any) -> bool:
    return any(get_origin(part) is os.PathLike or part is os.PathLike for part in (hint, *get_args(hint)))


def _check(name: str, value: Any, hint: Any) -> None:
    """Raises WorkloadError for a value that the annotation does not allow; annotations not listed here allow any."""
    parts = [part for part in get_args(hint) if part is not type(None)]
    if type(None) in get_args(hint) and len(parts) == 1:
        if value is None:
            return
        hint = parts[0]
    if get_origin(hint) is Literal:
        check_choice(name, value, get_args(hint))
    elif _COUNT in getattr(hint, "__metadata__", ()):
        check_counts(**{name: value})
    elif _FRACTION in getattr(hint, "__metadata__", ()):
        check_fractions(**{name: value})
    elif hint in _PLAIN and type(value) not in _PLAIN[hint][0]:
        raise WorkloadError(f"`{name}` must be {_PLAIN[hint][1]}. Received: {name}={shortened(value)}.")


NAMED_DATA_SETS = ("tfds:", "hf:")


def data_place(data_dir: str | os.PathLike[str] | None) -> str | None:
    """The absolute path of a folder or file; the name of a dataset ("tfds:mnist") or None is returned unchanged.

    Example:
        >>> data_place("tfds:mnist"), data_place("/data/../images"), data_place(None)
        ('tfds:mnist', '/images', None)
    """
    if data_dir is None:
        return None
    place = local_path(data_dir, WorkloadError)
    return str(data_dir) if str(data_dir).startswith(NAMED_DATA_SETS) else os.path.abspath(place)
