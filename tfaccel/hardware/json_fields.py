"""Checks of dataclass fields that may come from JSON: each error names the field, the value, and what is expected."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from tfaccel.errors import HardwareError

_Record = TypeVar("_Record")


def quoted(value: Any) -> str:
    """The value for an error message, shortened."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def check_count(record: Any, name: str, *, minimum: int) -> None:
    """Raises HardwareError unless the field is an integer of at least `minimum`."""
    value = getattr(record, name)
    if type(value) is not int or value < minimum:
        raise HardwareError(f"{name} must be a whole number of at least {minimum}. Received: {name}={quoted(value)}.")


def check_text(record: Any, name: str) -> None:
    """Raises HardwareError unless the field is a string."""
    value = getattr(record, name)
    if not isinstance(value, str):
        raise HardwareError(f"{name} must be a string. Received: {name}={quoted(value)}.")


def texts_from_json(record: Any, name: str) -> tuple[str, ...]:
    """The field as a tuple of strings; raises HardwareError if it is something else."""
    value = getattr(record, name)
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(item, str) for item in value):
        raise HardwareError(f"{name} must be a list of strings. Received: {name}={quoted(value)}.")
    return tuple(value)


def check_known(values: Iterable[str], known: Iterable[str], meaning: str) -> None:
    """Raises HardwareError for the values that are not among the known ones."""
    known = tuple(known)
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise HardwareError(f"{meaning}. Expected: {', '.join(known)}. Received: {', '.join(unknown)}.")


def record_from_json(cls: type[_Record], data: Any) -> _Record:
    """Creates the dataclass from a JSON object; raises HardwareError for unknown or missing fields."""
    if not isinstance(data, Mapping):
        raise HardwareError(f"{cls.__name__} must be a JSON object. Received: {quoted(data)}.")
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    check_known(map(str, data), known, f"{cls.__name__} has no such field")
    missing = [
        name
        for name, field in known.items()
        if name not in data and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        raise HardwareError(f"{cls.__name__} lacks {', '.join(missing)}. Received: {quoted(dict(data))}.")
    return cls(**data)
