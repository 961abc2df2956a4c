"""Short representations of plans and results, which a notebook shows when they end a cell."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from html import escape
from typing import Any, TypeVar

LENGTH = 300  # characters; about three lines of a notebook
_OF_FIELD = 100
_ROWS = 16  # of a notebook's table
_Class = TypeVar("_Class", bound=type)


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
    for field in fields(self):
        value = getattr(self, field.name)
        if field.repr and not _is_default(field, value):
            yield field.name, _short(value)


def _is_default(field: Field[Any], value: Any) -> bool:
    if field.default is not MISSING:
        return value is field.default or (type(value) is type(field.default) and bool(value == field.default))
    return field.default_factory is not MISSING and type(value) in (dict, list, tuple) and not value


def _short(value: Any) -> str:
    shorten = reprlib.Repr()
    shorten.maxdict = shorten.maxlist = shorten.maxtuple = shorten.maxset = 4
    shorten.maxlevel = 3
    shorten.maxstring = shorten.maxother = _OF_FIELD
    text = shorten.repr(value)
    return text if len(text) <= _OF_FIELD else f"{text[: _OF_FIELD - 3]}..."
