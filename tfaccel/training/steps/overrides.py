"""What is replaced on users' objects: temporary attributes, methods of their own, and an `apply` that is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NoReturn

import keras
import tensorflow as tf

from tfaccel.errors import PlanError
from tfaccel.tested_versions import private_part

_MISSING = object()

# By object and name, while `instance_attributes` sets it: in how many contexts, and the object's own value before.
_temporary: dict[tuple[int, str], tuple[int, Any]] = {}


@contextlib.contextmanager
def instance_attributes(instance: Any, attributes: dict[str, Any]) -> Iterator[None]:
    """Temporarily sets attributes on one instance, bypassing any `__setattr__` that would track them."""
    saved = {name: instance.__dict__.get(name, _MISSING) for name in attributes}
    for name, value in saved.items():
        number, own = _temporary.get((id(instance), name), (0, value))
        _temporary[id(instance), name] = number + 1, own
    instance.__dict__.update(attributes)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is _MISSING:
                instance.__dict__.pop(name, None)
            else:
                instance.__dict__[name] = value
            number, own = _temporary.pop((id(instance), name))
            if number > 1:
                _temporary[id(instance), name] = number - 1, own


@contextlib.contextmanager
def attributes_of_each(pairs: Iterable[tuple[Any, dict[str, Any]]]) -> Iterator[None]:
    """`instance_attributes` of several instances, each of which is asked for when those before it are set."""
    with contextlib.ExitStack() as stack:
        for instance, attributes in pairs:
            stack.enter_context(instance_attributes(instance, attributes))
        yield


def keeps_methods(instance: Any, kind: type, *names: str) -> bool:
    """Whether an instance of a class has its methods: none of them is replaced (see `replaces`).

    Example:
        >>> import keras
        >>> keeps_methods(keras.layers.Dense(1), keras.layers.Dense, "call")
        True
    """
    return isinstance(instance, kind) and not any(replaces(instance, kind, name) for name in names)


def replaces(instance: Any, kind: type, name: str, *, counts_patches: bool = True) -> bool:
    """Whether an instance has another method than the one that the package of `kind` defines.

    It may be set on the instance, defined by its class or a base, or set on `kind` itself, as libraries that patch
    Keras do. What `instance_attributes` sets does not count.

    Args:
        instance: any object.
        kind: a class of Keras or another package.
        name: a method of `kind`.
        counts_patches: False leaves out what is set on `kind` itself.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> with instance_attributes(model, {"train_step": lambda data: {}}):
        ...     replaces(model, keras.Model, "train_step")
        False
        >>> model.train_step = lambda data: {}
        >>> replaces(model, keras.Model, "train_step")
        True
    """
    method = private_part(kind, name)
    if has_own(instance, name) or private_part(type(instance), name) is not method:
        return True
    return counts_patches and _is_patch(method, kind)


def _is_patch(method: Any, kind: type) -> bool:
    """Whether a method of a class comes from elsewhere; the names that a decorator copies do not tell."""
    defined_in = getattr(method, "__globals__", {}).get("__name__", "")
    return bool(defined_in.split(".")[0] != kind.__module__.split(".")[0])


def has_own(instance: Any, name: str) -> bool:
    """Whether an instance itself, not only its class, has an attribute that tfaccel did not set."""
    return _own(instance, name) is not _MISSING


def left_by_user(instance: Any, name: str) -> Any:
    """A method as the user left it: the instance's own or its class's, but not what `instance_attributes` sets."""
    own = _own(instance, name)
    return partial(getattr(type(instance), name), instance) if own is _MISSING else own


def _own(instance: Any, name: str) -> Any:
    _, own = _temporary.get((id(instance), name), (0, vars(instance).get(name, _MISSING)))
    return _MISSING if isinstance(own, SetByTfaccel) else own


class SetByTfaccel:
    """A value that tfaccel sets on a user's object for longer than a context."""


def once_per_graph(function: Callable[[], Any]) -> Callable[[], Any]:
    """Wraps a function so that each graph calls it once and then reuses the result."""
    values: dict[tf.Graph, Any] = {}  # keeps the graphs alive, so that no id is reused

    def value() -> Any:
        graph = tf.compat.v1.get_default_graph()
        if graph not in values:
            values[graph] = function()
        return values[graph]

    return value


class _RefusedApply(SetByTfaccel):
    """Stands for an optimizer's `apply`; raises PlanError with the first of the reasons."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def __call__(self, *arguments: Any, **options: Any) -> NoReturn:
        raise PlanError(self.reasons[0])


def refuse_apply(optimizer: keras.optimizers.Optimizer, reason: str) -> None:
    """Lets `optimizer.apply` raise PlanError with a reason, until `allow_apply` is called with the same one."""
    refused = vars(optimizer).get("apply")
    if not isinstance(refused, _RefusedApply):
        refused = vars(optimizer)["apply"] = _RefusedApply()
    if reason not in refused.reasons:
        refused.reasons.append(reason)


def allow_apply(optimizer: keras.optimizers.Optimizer, reason: str) -> None:
    """Takes back one reason; the class's own `apply` is back after the last."""
    refused = vars(optimizer).get("apply")
    if isinstance(refused, _RefusedApply) and reason in refused.reasons:
        refused.reasons.remove(reason)
        if not refused.reasons:
            del vars(optimizer)["apply"]
