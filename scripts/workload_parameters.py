"""The flags of a workload: one for each parameter of the function that builds it."""

import contextlib
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Literal, get_args, get_origin, get_type_hints

from absl import flags

from tfaccel.errors import WorkloadError
from tfaccel.known_names import did_you_mean
from tfaccel.planning.load_workload import RECIPES_PACKAGE
from tfaccel.planning.option_checks import max_count
from tfaccel.processes.quiet_start import quiet_import
from tfaccel.scripts.plan_flags import AUTO

NUMBER, COUNT, TEXT = "a number", "a whole number of at least 1", "a text"

_NAMED = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class WorkloadParameters:
    """The flags of a workload's own parameters, added to those of a command.

    There is one for each parameter of the function that builds the workload, selected by --recipe or --workload in
    `argv`. Parameters that already are flags (--data_dir, --epochs ...) are skipped, and so are those whose type cannot
    be written as text. The help comes from the function's docstring, or from the comment next to the parameter.

    Args:
        argv: the command line, before it is parsed.
        values: the flags of the command.
    """

    def __init__(self, argv: Sequence[str], values: flags.FlagValues) -> None:
        self._values = values
        self._kinds: dict[str, str | tuple[str, ...]] = {}
        recipe = _written("recipe", argv)
        self._is_recipe = recipe is not None
        self._function = function = _function(recipe, _written("workload", argv))
        if function is None:
            return
        hints = get_type_hints(function)
        texts = _comment_texts(function) | _argument_texts(inspect.getdoc(function) or "")
        for name, parameter in inspect.signature(function).parameters.items():
            kind = _kind(hints.get(name, type(parameter.default)))
            if parameter.kind not in _NAMED or name in values or kind is None:
                continue
            help_text = texts.get(name, f"an option of {function.__module__}")
            if kind == "switch":
                flags.DEFINE_bool(name, bool(parameter.default), help_text, flag_values=values)
            else:
                choices = f" ({', '.join(kind)})" if isinstance(kind, tuple) else ""
                flags.DEFINE_string(name, AUTO, f"{help_text}{choices}", flag_values=values)
            self._kinds[name] = kind

    @property
    def are_known(self) -> bool:
        """Whether the function could be loaded."""
        return self._function is not None

    @property
    def names(self) -> list[str]:
        """The flags, in the order of the parameters."""
        return list(self._kinds)

    def defaults(self) -> dict[str, Any]:
        """The defaults of the function's parameters, and the epochs and batch size that a recipe recommends.

        Only a recipe is called for these: a user's function may read its data, which help should not wait for.
        """
        if self._function is None:
            return {}
        parameters = inspect.signature(self._function).parameters
        found = {name: parameter.default for name, parameter in parameters.items()}
        if self._is_recipe:
            with contextlib.suppress(Exception):  # an optional library is missing
                made = self._function()
                found |= {"epochs": made.epochs, "global_batch_size": made.global_batch_size}
        return {name: value for name, value in found.items() if value is not inspect.Parameter.empty}

    def chosen(self) -> dict[str, Any]:
        """The values of those flags that are set.

        Raises:
            WorkloadError: for a value that is not of the parameter's kind.
        """
        found: dict[str, Any] = {}
        for name, kind in self._kinds.items():
            flag = self._values[name]
            if kind == "switch" and flag.present:
                found[name] = flag.value
            elif kind != "switch" and flag.value != AUTO:
                found[name] = get_value(name, str(flag.value), kind)
        return found


def get_value(name: str, text: str, kind: str | tuple[str, ...]) -> Any:
    """Converts the text of a flag to a value of this kind, or checks that it is one of several texts.

    Raises:
        WorkloadError: if the text is not valid.
    """
    if isinstance(kind, tuple):
        if text not in kind:
            hint = did_you_mean(text, kind)
            raise WorkloadError(f"--{name} must be one of {', '.join(kind)}, or auto. Received: --{name}={text}.{hint}")
        return text
    convert: Callable[[str], Any] = {TEXT: str, NUMBER: float, COUNT: int}[kind]
    try:
        value = convert(text)
    except ValueError:
        value = None
    is_number = value is not None and (kind == TEXT or math.isfinite(value))
    if not is_number or (kind == COUNT and value < 1):
        raise WorkloadError(f"--{name} must be {kind}, or auto. Received: --{name}={text}.")
    if kind == COUNT and value > max_count(name):
        raise WorkloadError(f"--{name} must be at most {max_count(name)}, or auto. Received: --{name}={text:.40}.")
    return value


def _written(name: str, argv: Sequence[str]) -> str | None:
    """The value of a flag in `argv`, before flags are parsed."""
    for index, argument in enumerate(argv):
        flag, equals, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and flag == name:
            return value if equals else next(iter(argv[index + 1 :]), None)
    return None


def _function(recipe: str | None, import_path: str | None) -> Callable[..., Any] | None:
    """The function that builds the workload; None if it cannot be loaded, which is reported later."""
    module, _, function = (f"{RECIPES_PACKAGE}.{recipe}:workload" if recipe else import_path or "").partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with quiet_import():
            found = getattr(import_module(module), function)
        inspect.signature(found)
    except Exception:
        return None
    return found if callable(found) else None


def _kind(hint: Any) -> str | tuple[str, ...] | None:
    """The kind of value of a type hint; None if it cannot be written as text."""
    parts = [part for part in get_args(hint) if part is not type(None)]
    if get_origin(hint) is Literal:
        return tuple(map(str, get_args(hint)))
    if parts and get_origin(hint) is not None and str in parts:
        return TEXT
    if len(parts) == 1 and type(None) in get_args(hint):
        return _kind(parts[0])
    return {bool: "switch", int: COUNT, float: NUMBER, str: TEXT}.get(hint)


def _argument_texts(docstring: str) -> dict[str, str]:
    """Parameter -> its description in the docstring's arguments section."""
    section = re.search(r"^(?:Arguments|Args):\n((?:[ \t]+.*\n?|\n)+)", docstring, re.MULTILINE)
    if section is None:
        return {}
    entries = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", section[1], re.MULTILINE)
    return {name: " ".join(text.split()).rstrip(".") for name, text in entries}


def _comment_texts(function: Callable[..., Any]) -> dict[str, str]:
    """Parameter -> the comment next to it, or above it, in the source of a function with one parameter per line."""
    try:
        lines = inspect.getsource(inspect.unwrap(function)).splitlines()
    except (OSError, TypeError):
        return {}
    first = next((number for number, line in enumerate(lines) if line.lstrip().startswith("def ")), len(lines))
    texts: dict[str, str] = {}
    comments: list[str] = []
    for line in lines[first + 1 :]:
        parameter, comment = re.match(r"\s*(\w+)\s*:", line), re.search(r"(?:^|\s)#\s*(.*)$", line)
        comments += [comment[1].strip()] if comment else []
        if parameter:
            if comments:
                texts[parameter[1]] = " ".join(comments)
            comments = []
        elif line.startswith(")"):
            break
    return texts
