"""Temporary attributes of one object, and a function to set one to."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


@contextlib.contextmanager
def instance_attributes(instance: Any, attributes: dict[str, Any]) -> Iterator[None]:
    """Temporarily sets attributes on one instance, bypassing any `__setattr__` that would track them."""
    missing = object()
    saved = {name: instance.__dict__.get(name, missing) for name in attributes}
    instance.__dict__.update(attributes)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is missing:
                instance.__dict__.pop(name, None)
            else:
                instance.__dict__[name] = value


def once_per_graph(function: Callable[[], Any]) -> Callable[[], Any]:
    """Wraps a function so that each graph calls it once and then reuses the result."""
    values: dict[tf.Graph, Any] = {}  # keeps the graphs alive, so that no id is reused

    def value() -> Any:
        graph = tf.compat.v1.get_default_graph()
        if graph not in values:
            values[graph] = function()
        return values[graph]

    return value
