"""Checks of dataclass fields that may come from JSON: each error names the field, the value, and what is expected."""

from collections.abc import Iterable
from typing import Any, TypeVar

from tfaccel.errors import HardwareError
from tfaccel.records import quoted

_Record = TypeVar("_Record")


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
