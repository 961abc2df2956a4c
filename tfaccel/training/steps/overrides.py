"""Temporary attributes of one object, whether it overrides methods of its class, and a function to set one to."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfaccel.tested_versions import private_part

# By object and name, while `instance_attributes` sets it: in how many contexts, and whether the object had one before.
_temporary: dict[tuple[int, str], tuple[int, bool]] = {}


@contextlib.contextmanager
def instance_attributes(instance: Any, attributes: dict[str, Any]) -> Iterator[None]:
    """Temporarily sets attributes on one instance, bypassing any `__setattr__` that would track them."""
    missing = object()
    saved = {name: instance.__dict__.get(name, missing) for name in attributes}
    for name, value in saved.items():
        number, had_own = _temporary.get((id(instance), name), (0, value is not missing))
        _temporary[id(instance), name] = number + 1, had_own
    instance.__dict__.update(attributes)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is missing:
                instance.__dict__.pop(name, None)
            else:
                instance.__dict__[name] = value
            number, had_own = _temporary.pop((id(instance), name))
            if number > 1:
                _temporary[id(instance), name] = number - 1, had_own


def keeps_methods_of(instance: Any, kind: type, *names: str) -> bool:
    """Whether an instance of a class has its methods: neither a subclass nor the user, on the instance, replaced them.

    Those that `instance_attributes` sets do not count.

    Example:
        >>> class Kind:
        ...     def call(self):
        ...         return 1
        >>> instance = Kind()
        >>> with instance_attributes(instance, {"call": lambda: 2}):
        ...     keeps_methods_of(instance, Kind, "call")
        True
        >>> instance.call = lambda: 3
        >>> keeps_methods_of(instance, Kind, "call")
        False
    """
    return isinstance(instance, kind) and not any(
        has_own(instance, name) or private_part(type(instance), name) is not private_part(kind, name) for name in names
    )


def has_own(instance: Any, name: str) -> bool:
    """Whether an instance itself, not only its class, has an attribute that is not set by `instance_attributes`."""
    _, had_own = _temporary.get((id(instance), name), (0, name in vars(instance)))
    return had_own


def once_per_graph(function: Callable[[], Any]) -> Callable[[], Any]:
    """Wraps a function so that each graph calls it once and then reuses the result."""
    values: dict[tf.Graph, Any] = {}  # keeps the graphs alive, so that no id is reused

    def value() -> Any:
        graph = tf.compat.v1.get_default_graph()
        if graph not in values:
            values[graph] = function()
        return values[graph]

    return value
