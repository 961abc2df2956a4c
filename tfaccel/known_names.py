"""Suggestions for misspelled names."""

import difflib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from typing import Any, TypeVar, cast

_Named = TypeVar("_Named", bound=Callable[..., Any])
_NO_KERAS_OBJECT = re.compile(r"Could not interpret (optimizer|loss|metric|activation|initializer) identifier: (\w+)$")
# Keras's short names of losses and metrics.
_SHORT = ("accuracy", "acc", "crossentropy", "ce", "mse", "mae", "mape", "msle")


def did_you_mean(name: Any, known: Iterable[str], *, closeness: float = 0.6) -> str:
    """Returns `" Did you mean 'x'?"` with the known name closest to `name`, or "" if none is close or it is no text.

    Args:
        name, known: the given name, and those that it may be.
        closeness: how much of both names must agree, from 0 to 1.

    Example:
        >>> did_you_mean("mixed_bfloat61", ["float32", "mixed_bfloat16"])
        " Did you mean 'mixed_bfloat16'?"
    """
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=closeness) if isinstance(name, str) else []
    return f" Did you mean {near[0]!r}?" if near else ""


def check_names(names: Iterable[str], known: Collection[str], error: type[Exception], text: str) -> None:
    """Raises an error for the first unknown name: `text` formatted with it, plus the closest known name or all names.

    Example:
        >>> check_names(["epoch"], ["epochs", "seed"], ValueError, "There is no option {!r}.")
        Traceback (most recent call last):
        ValueError: There is no option 'epoch'. Did you mean 'epochs'?
    """
    for name in names:
        if name not in known:
            raise error(text.format(name) + (did_you_mean(name, known) or f" Options: {', '.join(known)}."))


def no_attribute(module: str, name: str, public: Collection[str]) -> AttributeError:
    """The error for a name that a module does not have.

    Example:
        >>> print(no_attribute("tfaccel.ops", "gather_row", ["gather_rows"]))
        module 'tfaccel.ops' has no attribute 'gather_row'. Did you mean 'gather_rows'? Public names: gather_rows.
    """
    hint = did_you_mean(name, public)
    return AttributeError(f"module {module!r} has no attribute {name!r}.{hint} Public names: {', '.join(public)}.")


def lazy_names(
    module: str, names: Mapping[str, str], public: list[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A module's `__getattr__` and `__dir__`, which import what defines a public name on its first use.

    Args:
        module: the name of the module.
        names: public name -> the module that defines it, and after a colon its name there if that differs.
        public: what `dir` of the module lists.

    Example:
        >>> find, names = lazy_names("here", {"Plan": "tfaccel.planning.plan"}, ["Plan"])
        >>> find("Plan").__name__, names()
        ('Plan', ['Plan'])
    """

    def find(name: str) -> Any:
        if name not in names:
            raise no_attribute(module, name, public)
        source, _, original = names[name].partition(":")
        return getattr(import_module(source), original or name)

    return find, lambda: sorted(public)


def suggests_names(named: _Named) -> _Named:
    """Decorates a function or a class: the TypeError for an unknown argument has the closest of those it takes.

    Example:
        >>> @suggests_names
        ... def area(*, width, height): ...
        >>> area(widht=1, height=1)
        Traceback (most recent call last):
        TypeError: area() has no argument 'widht'. Did you mean 'width'?
    """
    function = named.__init__ if isinstance(named, type) else named  # type: ignore[misc]
    parameters = inspect.signature(function).parameters
    known = [name for name, one in parameters.items() if one.kind is not one.POSITIONAL_ONLY and name != "self"]

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        check_names(kwargs, known, TypeError, f"{named.__name__}() has no argument {{!r}}.")
        return function(*args, **kwargs)

    if not isinstance(named, type):
        return cast(_Named, checked)
    named.__init__ = checked  # type: ignore[misc]
    return named


def hint_of_keras_error(text: str) -> str:
    """What to add to Keras's message about an unknown optimizer, loss, metric or similar: the closest name, or "".

    Example:
        >>> import keras
        >>> hint_of_keras_error("Could not interpret optimizer identifier: adamm")
        ". Did you mean 'adam'?"
    """
    found, keras = _NO_KERAS_OBJECT.search(text), sys.modules.get("keras")
    if found is None or keras is None:
        return ""
    module = getattr(keras, {"loss": "losses"}.get(found[1], f"{found[1]}s"))
    public = [name for name in dir(module) if not name.startswith("_")]
    names = [*map(str.lower, public)] if found[1] == "optimizer" else [*public, *_SHORT]
    return f".{hint}" if (hint := did_you_mean(found[2], names)) else ""
