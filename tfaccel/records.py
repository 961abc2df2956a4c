"""Records: dataclasses that become JSON values and come back, by the types of their fields alone."""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from os import PathLike
from typing import Any, ClassVar, Self, Union, cast, get_args, get_origin, get_type_hints

from tfaccel.errors import ReportError, TfaccelError
from tfaccel.local_path import local_path


class Record:
    """A dataclass that converts to JSON values and back.

    Fields may hold other dataclasses, and tuples of them. A class with a `_json_error` raises it for unknown and
    missing fields, and checks the items of its lists itself: they reach it as they are. In other classes lists become
    tuples where the field is one, and Python's own errors tell what is wrong.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Pair(Record):
        ...     names: tuple[str, ...] = ()
        >>> Pair(("a",)).to_json(), Pair.from_json({"names": ["b"]})
        ({'names': ['a']}, Pair(names=('b',)))
    """

    _json_error: ClassVar[type[TfaccelError] | None] = None  # raised for data that are not those of this class
    _derived: ClassVar[tuple[str, ...]] = ()  # properties that are written after the fields
    _ignores_others: ClassVar[bool] = False  # whether from_json leaves out names that are no fields

    def to_json(self) -> dict[str, Any]:
        """The fields, and for reports what follows from them, as JSON values."""
        names = [one.name for one in fields(self)]  # type: ignore[arg-type]
        return {name: to_plain(getattr(self, name)) for name in (*names, *self._derived)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The object from its `to_json` data; omitted fields have their defaults.

        Raises:
            TfaccelError: for an unknown or missing field, or an invalid value.
        """
        if cls._json_error is not None:
            _check_fields(cls, data, cls._json_error)
        names = [one.name for one in fields(cls)]  # type: ignore[arg-type]
        given = {name: value for name, value in {**data}.items() if name in names or not cls._ignores_others}
        return cls(**_converted(cls, given))


class SavedRecord(Record):
    """A record that is written to a file."""

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the `to_json` data as a JSON file."""
        local_path(path, ReportError).write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")


def to_plain(value: Any) -> Any:
    """A nested value with records as dicts, and tuples as lists."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return {one.name: to_plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(one) for key, one in value.items()}
    return [to_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _check_fields(cls: type[Record], data: Any, error: type[TfaccelError]) -> None:
    """Raises the error unless the data are a mapping that has all required fields and no others."""
    if not isinstance(data, Mapping):
        raise error(f"{cls.__name__} must be a JSON object. Received: {quoted(data)}.")
    names = [one.name for one in fields(cls)]  # type: ignore[arg-type]
    if unknown := sorted({*map(str, data)} - {*names}):
        raise error(f"{cls.__name__} has no such field. Expected: {', '.join(names)}. Received: {', '.join(unknown)}.")
    if missing := _missing(cls, data):
        raise error(f"{cls.__name__} lacks {', '.join(missing)}. Received: {quoted(dict(data))}.")


def _missing(cls: type, data: Mapping[str, Any]) -> list[str]:
    required = [one.name for one in fields(cls) if one.default is one.default_factory is MISSING]
    return [name for name in required if name not in data]


def quoted(value: Any) -> str:
    """The value for an error message, shortened."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def _converted(cls: type, data: dict[str, Any]) -> dict[str, Any]:
    """The data with objects as dataclasses and lists as tuples where the fields of the class are."""
    converters = _converters(cls)
    if missing := [name for name in _missing(cls, data) if name in converters]:
        raise KeyError(missing[0])
    return {name: converters[name](value) if name in converters else value for name, value in data.items()}


@functools.cache
def _converters(cls: type) -> dict[str, Callable[[Any], Any]]:
    """The fields whose JSON values are of another type than the field -> what converts them."""
    hints = get_type_hints(cls)
    found = {one.name: _converter(hints[one.name], getattr(cls, "_json_error", None) is None) for one in fields(cls)}
    return {name: convert for name, convert in found.items() if convert is not None}


def _converter(hint: Any, makes_tuples: bool) -> Callable[[Any], Any] | None:
    """What converts a JSON value to the type; None where it is of that type already."""
    origin, parts = get_origin(hint), get_args(hint)
    inner = [_converter(part, makes_tuples) for part in parts]
    convert = next((one for one in inner if one is not None), None)
    if origin in (types.UnionType, Union) and convert is not None:
        return lambda value: None if value is None else convert(value)
    if origin is tuple and (makes_tuples or convert is not None):
        return lambda value: tuple(map(convert or _same, value)) if isinstance(value, list | tuple) else value
    if hasattr(hint, "from_json"):
        return cast(Callable[[Any], Any], hint.from_json)
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value: hint(**_converted(hint, {**value}))
    return None


def _same(value: Any) -> Any:
    return value
