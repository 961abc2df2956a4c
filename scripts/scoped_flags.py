"""Flags that exist only while a command runs, since other commands use the same names for other purposes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from absl import flags

# A flag's default, and its help; the default, or a type instead of it, determines the flag's type.
Flag = tuple[Any, str]

_DEFINE = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    list: flags.DEFINE_list,
}


@contextmanager
def scoped_flags(definitions: Mapping[str, Flag], module_name: str) -> Iterator[None]:
    """Defines flags, and restores those of other commands at the end.

    A type (`str`, `int`) as default means a flag of that type without a default.
    """
    before = {name: flags.FLAGS[name] for name in definitions if name in flags.FLAGS}
    for name in before:
        delattr(flags.FLAGS, name)
    for name, (default, text) in definitions.items():
        is_type = isinstance(default, type)
        define = _DEFINE[default if is_type else type(default)]
        define(name, None if is_type else default, text, module_name=module_name)
    try:
        yield
    finally:
        for name in definitions:
            delattr(flags.FLAGS, name)
        for name, flag in before.items():
            flags.FLAGS[name] = flag


def value(name: str) -> Any:
    """The value of a flag."""
    return flags.FLAGS[name].value
