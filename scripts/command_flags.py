"""The flags of one command: each command has a `FlagValues` of its own, made anew for each call."""

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from absl import flags

# A flag's default, and its help; the default's type, or a type in place of a default, says what the flag takes.
Flag = tuple[Any, str]

_DEFINE = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    list: flags.DEFINE_list,
}


def command_flags(definitions: Mapping[str, Flag]) -> flags.FlagValues:
    """The flags of a command, not parsed yet.

    Example:
        >>> command_flags({"json": (False, "print JSON"), "out": (str, "a file")})["out"].value is None
        True
    """
    values = flags.FlagValues()
    define_flags(definitions, values)
    return values


def option_flags(options: type, texts: Mapping[str, str]) -> dict[str, Flag]:
    """Flags of the fields of a dataclass, with the fields' defaults.

    Args:
        options: the dataclass.
        texts: name of a field -> the help of its flag.

    Example:
        >>> from tfaccel.extras.serving.options import ServeOptions
        >>> option_flags(ServeOptions, {"port": "HTTP port", "grpc_port": "gRPC port"})
        {'port': (8501, 'HTTP port'), 'grpc_port': (<class 'int'>, 'gRPC port')}
    """
    defaults = {one.name: one.default for one in dataclasses.fields(options)}
    kinds = get_type_hints(options)
    found = {name: get_args(kinds[name])[0] if defaults[name] is None else defaults[name] for name in texts}
    return {name: (list(one) if isinstance(one, tuple) else one, texts[name]) for name, one in found.items()}


def define_flags(definitions: Mapping[str, Flag], values: flags.FlagValues) -> None:
    """Adds flags to those of a command; a type (`str`, `int`) in place of a default means None."""
    for name, (default, text) in definitions.items():
        is_type = isinstance(default, type)
        define = _DEFINE[default if is_type else type(default)]
        define(name, None if is_type else default, text, flag_values=values)
