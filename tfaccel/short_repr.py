"""Nouns: frozen dataclasses with a short representation, which a notebook shows when they end a cell."""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from html import escape
from typing import Any, TypeVar, dataclass_transform, overload

from tfaccel.argument_types import checks_types
from tfaccel.errors import TfaccelError
from tfaccel.known_names import suggests_names

LENGTH = 300  # characters; about three lines of a notebook
_OF_FIELD = 100
_ROWS = 16  # of a notebook's table
_Class = TypeVar("_Class", bound=type)


@overload
def noun(cls: _Class, /) -> _Class:
    """Decorates a class: `@noun`."""


@overload
def noun(
    *, kw_only: bool = ..., error: type[TfaccelError] | None = ..., checks_numbers: bool = ..., suggests: bool = ...
) -> Callable[[_Class], _Class]:
    """Returns what decorates a class: `@noun(error=DataError)`."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def noun(
    cls: Any = None,
    /,
    *,
    kw_only: bool = True,
    error: type[TfaccelError] | None = None,
    checks_numbers: bool = True,
    suggests: bool = False,
) -> Any:
    """Decorates a class: a frozen dataclass with a short `repr`.

    Args:
        cls: the class.
        kw_only: whether its fields are given by name only.
        error: what is raised for a wrong type of a field; see `checks_types`. None: types are not checked.
        checks_numbers: as for `checks_types`.
        suggests: whether the TypeError for an unknown field has the closest name; with an `error`, it always has.

    Example:
        >>> @noun
        ... class Curve:
        ...     name: str
        ...     losses: tuple[float, ...] = ()
        >>> Curve(name="digits")
        Curve(name='digits')
    """
    if cls is None:
        return functools.partial(noun, kw_only=kw_only, error=error, checks_numbers=checks_numbers, suggests=suggests)
    made: Any = dataclass(frozen=True, kw_only=kw_only)(cls)
    if error is not None:
        made = checks_types(error, checks_numbers=checks_numbers)(made)
    if suggests or error is not None:
        made = suggests_names(made)
    return short_repr(made)


def short_repr(cls: _Class) -> _Class:
    """Decorates a dataclass: its `repr` leaves out fields at their defaults, and shortens those that hold much.

    Jupyter shows the same fields as a table.

    Example:
        >>> from dataclasses import dataclass
        >>> @short_repr
        ... @dataclass
        ... class Curve:
        ...     name: str
        ...     losses: list[float]
        ...     title: str = ""
        >>> Curve("digits", [1.0] * 1000)
        Curve(name='digits', losses=[1.0, 1.0, 1.0, 1.0, ...])
    """
    cls.__repr__ = _repr  # type: ignore[assignment]
    cls._repr_html_ = _html  # type: ignore[attr-defined]
    return cls


def _repr(self: Any) -> str:
    parts: list[str] = []
    room = LENGTH - len(type(self).__name__) - len("(, ...)")
    for name, value in _shown(self):
        text = f"{name}={value}"
        if len(", ".join([*parts, text])) > room:
            parts.append("...")
            break
        parts.append(text)
    return f"{type(self).__name__}({', '.join(parts)})"


def _html(self: Any) -> str:
    rows = list(_shown(self))
    rows = rows if len(rows) <= _ROWS else [*rows[: _ROWS - 1], ("...", "")]
    cells = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table><caption>{type(self).__name__}</caption>{''.join(cells)}</table>"


def _shown(self: Any) -> Iterator[tuple[str, str]]:
    """The names and shortened values of the fields that are not at their defaults."""
    for one in fields(self):
        value = getattr(self, one.name)
        if one.repr and not _is_default(one, value):
            yield one.name, _short(value)


def _is_default(one: Field[Any], value: Any) -> bool:
    if one.default is not MISSING:
        return value is one.default or (type(value) is type(one.default) and bool(value == one.default))
    return one.default_factory is not MISSING and type(value) in (dict, list, tuple) and not value


def _short(value: Any) -> str:
    shorten = reprlib.Repr()
    shorten.maxdict = shorten.maxlist = shorten.maxtuple = shorten.maxset = 4
    shorten.maxlevel = 3
    shorten.maxstring = shorten.maxother = _OF_FIELD
    text = shorten.repr(value)
    return text if len(text) <= _OF_FIELD else f"{text[: _OF_FIELD - 3]}..."
