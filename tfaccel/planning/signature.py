"""The signature of a function: a digest of its code and of what the code refers to.

It is the same in every process, and changes when the function may compute something else: another model, say.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import inspect
import json
import re
import sys
import types
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

from tfaccel.planning.deferred import Deferred
from tfaccel.planning.own_model import is_model

_PLAIN = (bool, int, float, complex, str, bytes, PurePath, enum.Enum, range, slice, types.NoneType, types.EllipsisType)
_MAX_ELEMENTS = 100  # of a list or dictionary; longer ones are data, which are identified elsewhere
_NUMBER = re.compile(r"_\d+$")
_LIBRARIES = ("builtins", "keras", "numpy", "tensorflow", "tfaccel")  # identified by their versions


def get_signature(function: Any) -> str:
    """A digest of a function, or of a Keras model.

    It covers the function's code and the file that defines it; likewise the functions, classes and modules that it
    wraps, encloses or names, except for those of libraries; plain values (numbers, strings, and containers of them)
    that it encloses, takes as defaults, reads from global variables, or from attributes of objects such as
    `absl.flags.FLAGS`; dtype and shape of arrays; the config of Keras models, and the shapes of their weights. An
    attribute counts if its name is somewhere in this code.

    Example:
        >>> def with_width(width):
        ...     return lambda: width * 2
        >>> get_signature(with_width(8)) == get_signature(with_width(8))
        True
        >>> get_signature(with_width(8)) == get_signature(with_width(9))
        False
    """
    names: frozenset[str] = frozenset()
    while True:  # until all code has been seen whose names may be those of attributes
        walk = _Walk(names)
        parts = list(walk.parts(function))
        if walk.found == names:
            break
        names = frozenset(walk.found)
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("utf-8", "backslashreplace") + b"\0")
    return digest.hexdigest()


class _Walk:
    """Visits each object once.

    Args:
        names: attributes of these names count.

    Attributes:
        found: all names in the code that was visited.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self.found = set(names)
        self._names = names
        self._seen: dict[int, Any] = {}  # keeps the objects alive, so that no id is used twice

    def parts(self, value: Any) -> Iterator[str]:
        """What a value contributes."""
        if isinstance(value, _PLAIN):
            yield repr(value)
        elif id(value) not in self._seen:
            self._seen[id(value)] = value
            yield from self._of_object(value)

    def _of_object(self, value: Any) -> Iterator[str]:
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            yield from self._of_container(value)
        elif isinstance(value, functools.partial):
            yield from self._of_all((value.func, value.args, value.keywords))
        elif isinstance(value, types.MethodType):
            yield from self._of_all((value.__func__, value.__self__))
        elif isinstance(value, types.FunctionType):
            yield from self._of_function(value)
        elif isinstance(value, types.ModuleType):
            yield _file_digest(value.__name__)
        elif inspect.isclass(value):
            yield from self._of_class(value)
        elif isinstance(value, Deferred):
            yield value.signature or get_signature(value.get())
        elif _is_flags(value):
            yield from self._of_attributes(value.flag_values_dict())
        elif is_model(value):
            yield from self.parts(type(value))
            yield from _of_model(value)
        elif hasattr(value, "dtype") and hasattr(value, "shape"):
            yield f"{value.dtype} {value.shape}"
        elif hasattr(value, "__wrapped__"):  # by functools.cache, say
            yield from self.parts(value.__wrapped__)
        else:
            yield from self.parts(type(value))
            if type(value).__module__.partition(".")[0] not in _LIBRARIES:
                yield from self._of_attributes(getattr(value, "__dict__", {}))

    def _of_all(self, values: tuple[Any, ...]) -> Iterator[str]:
        for value in values:
            yield from self.parts(value)

    def _of_attributes(self, attributes: Mapping[str, Any]) -> Iterator[str]:
        for name in sorted(self._names & {*attributes}):
            yield name
            yield from self.parts(attributes[name])

    def _of_container(self, value: Any) -> Iterator[str]:
        yield f"{type(value).__qualname__} {len(value)}"
        if isinstance(value, set | frozenset):
            value = sorted(value, key=repr)
        for one in islice(value.items() if isinstance(value, Mapping) else value, _MAX_ELEMENTS):
            yield from self.parts(one)

    def _of_class(self, kind: type) -> Iterator[str]:
        for one in kind.__mro__:
            yield f"{one.__qualname__} {_file_digest(one.__module__)}"
            if not _is_library(one.__module__):
                for member in vars(one).values():
                    member = getattr(member, "__func__", getattr(member, "fget", member))
                    if isinstance(member, types.FunctionType):
                        yield from self.parts(member)

    def _of_function(self, function: types.FunctionType) -> Iterator[str]:
        code = function.__code__
        yield f"{function.__qualname__} {_file_digest(function.__module__)}"
        yield from _of_code(code)
        yield from self._of_all((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                yield from self.parts(cell.cell_contents)
        if _is_library(function.__module__):
            return
        names = list(dict.fromkeys(_names(code)))
        self.found.update(names)
        for name in names:
            if name in function.__globals__:
                yield name
                yield from self.parts(function.__globals__[name])


def _of_model(model: Any) -> Iterator[str]:
    with contextlib.suppress(Exception):  # whatever a subclass raises; its source counts
        config = json.dumps(model.get_config(), sort_keys=True, default=lambda one: type(one).__qualname__)
        yield _numbered_anew(config)
    yield from (f"{weight.dtype} {tuple(weight.shape)}" for weight in model.weights)


def _numbered_anew(config: str) -> str:
    """A model's config with its layers numbered from their first appearance on: Keras counts them in the process.

    Example:
        >>> one, other = ('{"name": "dense_%d", "after": ["dense_%d", 0]}' % (n, n) for n in (3, 7))
        >>> _numbered_anew(one) == _numbered_anew(other)
        True
    """
    names = dict.fromkeys(re.findall(r'"name": "([^"\\]+)"', config))
    numbers = {name: f'"{_NUMBER.sub("", name)}:{number}"' for number, name in enumerate(names)}
    return re.sub(r'"([^"\\]+)"', lambda found: numbers.get(found[1], found[0]), config)


def _names(code: types.CodeType) -> Iterator[str]:
    """Names of globals and attributes in a function and in those defined inside it."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _names(one)


def _of_code(code: types.CodeType) -> Iterator[str]:
    """Bytecode and constants, without line numbers."""
    yield code.co_code.hex()
    yield repr(code.co_names)
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _of_code(one)
        else:
            yield repr(sorted(one, key=repr) if isinstance(one, frozenset) else one)


def _is_flags(value: Any) -> bool:
    flags = sys.modules.get("absl.flags")
    return flags is not None and isinstance(value, flags.FlagValues)


def _is_library(module: str) -> bool:
    """Whether a module need not be read: Python's own, a library of known version, or an installed package."""
    top = module.partition(".")[0]
    if top in _LIBRARIES:
        return not module.startswith("tfaccel.recipes")
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return top in sys.stdlib_module_names or "site-packages" in Path(file).parts


def _file_digest(module: str) -> str:
    """The digest of a module's file; empty for a library, and without one (a notebook, a prompt)."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or _is_library(module):
        return ""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""
