"""The flags of `tfaccel compress`: one for each option of `CompressOptions` and `TfmotOptions` that has a help text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import Field, fields
from typing import Any

from absl import flags

from tfaccel.compressing.compress_options import CompressOptions
from tfaccel.compressing.methods import TfmotOptions
from tfaccel.errors import TfaccelError
from tfaccel.scripts.command_flags import command_flags


def compress_flags() -> flags.FlagValues:
    """The flags of the command, not parsed yet."""
    definitions: dict[str, Any] = {
        "run_dir": (str, "the directory of a finished run"),
        "workload": (str, "the run's workload, as package.module:function, if it is not a recipe"),
    }
    for name, one in _fields(CompressOptions):
        default = list(one.default) if isinstance(one.default, tuple) else one.default
        definitions[name] = (str if default is None else default, one.metadata["help"])
    for name, one in _fields(TfmotOptions):
        definitions[name] = (str, one.metadata["help"])
    definitions["json"] = (False, "print the result as JSON")
    definitions["quiet"] = (False, "print only the result, no progress")
    return command_flags(definitions)


def run_dir(values: flags.FlagValues) -> str:
    """The value of --run_dir, which must be given."""
    path: str | None = values.run_dir
    if not path:
        raise TfaccelError("Give --run_dir=DIR, the directory of a finished run.")
    return path


def compress_options(values: flags.FlagValues) -> dict[str, Any]:
    """The options that are set by flags.

    Raises:
        TfaccelError: for a value that is not a number.
    """
    found = {one.name: values[name].value for name, one in _fields(CompressOptions)}
    found["num_threads"] = tuple(int(_number(int, "latency_threads", text)) for text in values.latency_threads)
    found["training"] = {
        one.name: _number(int if str(one.type).startswith("int") else float, name, values[name].value)
        for name, one in _fields(TfmotOptions)
        if values[name].value is not None
    }
    return found


def _fields(options: type[Any]) -> Iterator[tuple[str, Field[Any]]]:
    """Flag -> the field that it sets."""
    return ((one.metadata.get("flag") or one.name, one) for one in fields(options) if "help" in one.metadata)


def _number(kind: Callable[[str], Any], name: str, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise TfaccelError(f"--{name} must be {wanted}. Received: --{name}={text}.") from None
