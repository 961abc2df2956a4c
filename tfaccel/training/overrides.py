"""Attributes of one object, set for a while."""

import contextlib
from collections.abc import Iterator
from typing import Any


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
