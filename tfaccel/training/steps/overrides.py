"""Attributes of one object, set for a while, and functions to set them to."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


@contextlib.contextmanager
def instance_attributes(instance: Any, attributes: dict[str, Any]) -> Iterator[None]:
    """Sets attributes on one instance for a while, past any `__setattr__` that would track them."""
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
    """A function that calls another once in each graph in which it is asked, and remembers what that returned."""
    values: dict[tf.Graph, Any] = {}  # holds the graphs, so that none takes the place of another

    def value() -> Any:
        graph = tf.compat.v1.get_default_graph()
        if graph not in values:
            values[graph] = function()
        return values[graph]

    return value
