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
import sys
import types
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

from tfaccel.planning.own_model import RebuiltModel, is_model

_PLAIN = (bool, int, float, complex, str, bytes, PurePath, enum.Enum, range, slice, types.NoneType, types.EllipsisType)
_MAX_ELEMENTS = 100  # of a list or dictionary; longer ones are data, which are identified elsewhere
_LIBRARIES = ("builtins", "keras", "numpy", "tensorflow", "tfaccel")  # identified by their versions


def signature_of(function: Any) -> str:
    """A digest of a function, or of a Keras model.

    It covers the function's code and the file that defines it; likewise the functions, classes and modules that it
    wraps, encloses or names, except for those of libraries; plain values (numbers, strings, and containers of them)
    that it encloses, takes as defaults, or reads from global variables and from attributes of objects such as
    `absl.flags.FLAGS`; dtype and shape of arrays; the config of Keras models, and the shapes of their weights. Other
    objects count by their class only.

    Example:
        >>> def with_width(width):
        ...     return lambda: width * 2
        >>> signature_of(with_width(8)) == signature_of(with_width(8))
        True
        >>> signature_of(with_width(8)) == signature_of(with_width(9))
        False
    """
    digest = hashlib.sha256()
    for part in _Walk().parts(function):
        digest.update(part.encode("utf-8", "backslashreplace") + b"\0")
    return digest.hexdigest()


class _Walk:
    """Visits each object once."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # keeps the objects alive, so that no id is used twice

    def parts(self, value: Any, names: Collection[str] = ()) -> Iterator[str]:
        """What a value contributes.

        Args:
            value: any object.
            names: names in the code that refers to it, which may be its attributes.
        """
        if isinstance(value, _PLAIN):
            yield repr(value)
        elif id(value) not in self._seen:
            self._seen[id(value)] = value
            yield from self._of_object(value, names)

    def _of_object(self, value: Any, names: Collection[str]) -> Iterator[str]:
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            yield from self._of_container(value, names)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                yield from self.parts(part)
        elif isinstance(value, types.MethodType):
            yield from self.parts(value.__func__)
            code = getattr(value.__func__, "__code__", None)
            yield from self.parts(value.__self__, [*_names(code)] if code else ())
        elif isinstance(value, types.FunctionType):
            yield from self._of_function(value)
        elif isinstance(value, types.ModuleType):
            yield _file_digest(value.__name__)
        elif inspect.isclass(value):
            for one in value.__mro__:
                yield f"{one.__qualname__} {_file_digest(one.__module__)}"
        elif isinstance(value, RebuiltModel):
            yield from self.parts(value.model)
        elif _is_flags(value):
            yield from self._of_attributes(value.flag_values_dict(), names)
        elif is_model(value):
            yield from self.parts(type(value))
            yield from _of_model(value)
        elif hasattr(value, "dtype") and hasattr(value, "shape"):
            yield f"{value.dtype} {value.shape}"
        elif hasattr(value, "__wrapped__"):  # by functools.cache, say
            yield from self.parts(value.__wrapped__, names)
        else:
            yield from self.parts(type(value))
            if type(value).__module__.partition(".")[0] not in _LIBRARIES:
                own = inspect.getattr_static(type(value), "__call__", None)
                names = {*names, *(_names(own.__code__) if isinstance(own, types.FunctionType) else ())}
                yield from self._of_attributes(getattr(value, "__dict__", {}), names)

    def _of_attributes(self, attributes: Mapping[str, Any], names: Collection[str]) -> Iterator[str]:
        for name in sorted({*names} & {*attributes}):
            yield name
            yield from self.parts(attributes[name])

    def _of_container(self, value: Any, names: Collection[str]) -> Iterator[str]:
        yield f"{type(value).__qualname__} {len(value)}"
        if isinstance(value, set | frozenset):
            value = sorted(value, key=repr)
        for one in islice(value.items() if isinstance(value, Mapping) else value, _MAX_ELEMENTS):
            yield from self.parts(one, names)

    def _of_function(self, function: types.FunctionType) -> Iterator[str]:
        code = function.__code__
        names = [*_names(code)]
        yield f"{function.__qualname__} {_file_digest(function.__module__)}"
        yield from _of_code(code)
        for part in (function.__defaults__, function.__kwdefaults__):
            yield from self.parts(part)
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                yield from self.parts(cell.cell_contents, names)
        if not _is_library(function.__module__):
            for name in names:
                if name in function.__globals__:
                    yield name
                    yield from self.parts(function.__globals__[name], names)


def _of_model(model: Any) -> Iterator[str]:
    with contextlib.suppress(Exception):  # whatever a subclass raises; its source counts
        yield json.dumps(model.get_config(), sort_keys=True, default=lambda one: type(one).__qualname__)
    yield from (f"{weight.dtype} {tuple(weight.shape)}" for weight in model.weights)


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
    return (top in sys.stdlib_module_names and top != "__main__") or "site-packages" in Path(file).parts


def _file_digest(module: str) -> str:
    """The digest of a module's file; empty for a library, and without one (a notebook, a prompt)."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or _is_library(module):
        return ""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""
