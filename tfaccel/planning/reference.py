"""References to objects that another process can load, by import path or by pickle, and signatures of functions."""

from __future__ import annotations

import base64
import contextlib
import enum
import functools
import hashlib
import inspect
import json
import mmap
import os
import pickle
import re
import runpy
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, Self

from tfaccel.errors import TfaccelError, WorkloadError
from tfaccel.files import get_sha256
from tfaccel.planning.load_workload import RECIPES_PACKAGE, import_named, is_import_path
from tfaccel.planning.own_model import Deferred, is_model, signed_by
from tfaccel.planning.workload import Workload

# What `multiprocessing` calls the main module of the parent in a child: its `if __name__ == "__main__"` does not run.
_MAIN_IN_CHILD = "__mp_main__"
_ALIGNMENT = 64  # of arrays in a file, as NumPy's and TensorFlow's
_loading: list[str] = []  # the main file of the parent while this process runs it
_PLAIN = (bool, int, float, complex, str, bytes, PurePath, enum.Enum, range, slice, types.NoneType, types.EllipsisType)
_MAX_ELEMENTS = 100  # of a list or dictionary; longer ones are data, which are identified elsewhere
_NUMBER = re.compile(r"_\d+$")
_LIBRARIES = ("builtins", "keras", "numpy", "tensorflow", "tfaccel")  # identified by their versions


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A function, class or object that another process can load, by import path or pickle.

    Args:
        kind: "recipe" (a workload by its recipe's name), "import" (package.module:name), "pickle", "file" (a pickle in
            a file) or "none".
        text: the name, the import path, the pickle in base64, or the file's path.
        name: its name in messages.

    Example:
        >>> import json
        >>> Reference.of(json.dumps, "function").load() is json.dumps
        True
    """

    kind: str
    text: str = ""
    name: str = ""

    @classmethod
    def of(
        cls,
        thing: Any,
        what: str,
        *,
        plain_name: str | None = None,
        by_value: bool = False,
        error_type: type[TfaccelError] = WorkloadError,
    ) -> Self:
        """The reference to an object.

        Args:
            thing: the object; its import path as text; or None.
            what: its kind, for messages.
            plain_name: the kind of a text that is not an import path, such as "recipe"; None to refuse it.
            by_value: whether to pickle definitions of `__main__` by value; see `Origin`.
            error_type: the error to raise.

        Raises:
            TfaccelError: of type `error_type`, for something that cannot be sent to another process.
        """
        if thing is None:
            return cls(kind="none")
        if isinstance(thing, str):
            if ":" in thing or plain_name is None:
                if not is_import_path(thing):
                    raise error_type(f"A {what} is written package.module:name. Received: {thing!r}.")
                return cls(kind="import", text=thing, name=thing)
            return cls(kind=plain_name, text=thing, name=thing)
        if not callable(thing) and not hasattr(thing, "build") and not isinstance(thing, Workload):
            raise error_type(f"A {what} must be a function or its import path. Received: {thing!r:.200}.")
        return cls.by_pickle(thing, what, by_value=by_value, error_type=error_type)

    @classmethod
    def by_pickle(
        cls, thing: Any, what: str, *, by_value: bool, error_type: type[TfaccelError] = WorkloadError
    ) -> Self:
        """A reference to an object that another process unpickles.

        It is pickled by import path if possible, otherwise by value, such as a lambda or notebook code. The arguments
        and errors are those of `of`.
        """
        pickled, _ = _pickle(thing, what, by_value=by_value, error_type=error_type, apart=False)
        return cls(kind="pickle", text=base64.b64encode(pickled).decode(), name=_name(thing))

    @classmethod
    def by_file(
        cls, thing: Any, what: str, *, by_value: bool, file: Path, error_type: type[TfaccelError] = WorkloadError
    ) -> Self:
        """A reference to an object in a file, whose arrays several processes on this machine share.

        Each process maps the arrays into its memory, and writes to copies of its own. The arguments and errors are
        those of `of`; `file` is created.
        """
        pickled, arrays = _pickle(thing, what, by_value=by_value, error_type=error_type, apart=True)
        views = [array.raw() for array in arrays]
        with file.open("wb") as stream:
            pickle.dump((pickled, [view.nbytes for view in views]), stream)
            for view in views:
                stream.write(bytes(-stream.tell() % _ALIGNMENT))
                stream.write(view)
        return cls(kind="file", text=str(file), name=_name(thing))

    def load(self, error_type: type[TfaccelError] = WorkloadError) -> Any:
        """Loads the object; None for "none".

        Raises:
            TfaccelError: of type `error_type`, if it cannot be imported, or does not exist.
        """
        if self.kind == "none":
            return None
        if self.kind in ("recipe", "import"):
            return import_named(self.import_path(), error_type=error_type)
        try:
            return _load_file(Path(self.text)) if self.kind == "file" else pickle.loads(base64.b64decode(self.text))
        except (ImportError, AttributeError) as error:
            raise error_type(
                f"{self.name} cannot be loaded in another process: {error}. Define it at the top level of a module, in "
                "the working directory or in an installed package."
            ) from error

    def import_path(self) -> str:
        """Its import path, as package.module:name."""
        return f"{RECIPES_PACKAGE}.{self.text}:workload" if self.kind == "recipe" else self.text


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a process loads references that another one has made.

    Args:
        folder: directory to import modules from, in addition to installed packages.
        main_file: the running script, if it defines something that is pickled; else None.
        import_paths: further directories to import modules from.
    """

    folder: str
    main_file: str | None = None
    import_paths: tuple[str, ...] = ()

    @classmethod
    def of(cls, things: Iterable[Any]) -> tuple[Self, bool]:
        """The origin of objects in this process, and whether they must be pickled by value.

        The latter holds for what is defined in a notebook or at a prompt, which another process cannot run again.

        Raises:
            WorkloadError: if this process itself only loads what a script defines: each would start others.
        """
        if _loading:
            raise WorkloadError(
                f"Each process that is started runs {_loading[-1]} again, and would start others. Put the call in it "
                'under `if __name__ == "__main__":`.'
            )
        in_main = any("__main__" in _modules(thing) for thing in things)
        main_file = getattr(sys.modules["__main__"], "__file__", None) if in_main else None
        found = cls(
            folder=os.getcwd(),
            main_file=None if main_file is None else os.path.abspath(main_file),
            import_paths=tuple(os.path.abspath(path) for path in sys.path if os.path.isdir(path)),
        )
        return found, in_main and main_file is None

    def prepare(self) -> None:
        """Prepares this process to load the references."""
        if self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        sys.path += [path for path in self.import_paths if path not in sys.path]
        if self.main_file is not None:
            _loading.append(self.main_file)
            try:
                content = runpy.run_path(self.main_file, run_name=_MAIN_IN_CHILD)
            finally:
                _loading.pop()
            module = types.ModuleType(_MAIN_IN_CHILD)
            module.__dict__.update(content)
            sys.modules["__main__"] = sys.modules[_MAIN_IN_CHILD] = module


def _modules(thing: Any) -> set[str | None]:
    """The modules that define an object, or the functions of a workload and what they are bound to."""
    if isinstance(thing, str):
        return set()
    found = {getattr(thing, "__module__", None), type(thing).__module__}
    if isinstance(thing, Workload):
        return found.union(*(_modules(value) for value in vars(thing).values() if not isinstance(value, Mapping)))
    if isinstance(thing, functools.partial):
        found |= _modules(thing.func)
    if getattr(thing, "__self__", None) is not None:
        found.add(type(thing.__self__).__module__)
    return found


def _load_file(file: Path) -> Any:
    with file.open("rb") as stream:
        pickled, sizes = pickle.load(stream)
        end = stream.tell()
        content = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))
    arrays = []
    for size in sizes:
        start = end + -end % _ALIGNMENT
        end = start + size
        arrays.append(content[start:end])
    return pickle.loads(pickled, buffers=arrays)


def _name(thing: Any) -> str:
    return thing.name if isinstance(thing, Workload) else f"{getattr(thing, '__module__', '')}:{_label(thing)}"


def _label(thing: Any) -> str:
    label: str = getattr(thing, "__qualname__", type(thing).__qualname__)
    return label


def _pickle(
    thing: Any, what: str, *, by_value: bool, error_type: type[TfaccelError], apart: bool
) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """The pickle of an object, and its arrays if they are kept apart."""

    def dumped(dumps: Callable[..., bytes]) -> tuple[bytes, list[pickle.PickleBuffer]]:
        arrays: list[pickle.PickleBuffer] = []
        with signed_by(get_signature):
            return dumps(thing, protocol=5, buffer_callback=arrays.append if apart else None), arrays

    try:
        if not by_value:
            with contextlib.suppress(Exception):
                return dumped(pickle.dumps)
        import cloudpickle

        return dumped(cloudpickle.dumps)
    except Exception as error:  # whatever the object's own code raises
        is_workload = isinstance(thing, Workload)
        remedy = "Pass a function that creates it, defined" if is_workload else "Define it"
        cause = str(error).rstrip(".")
        if "dtype variant" in cause:  # TensorFlow's words
            cause = "it holds a tf.data.Dataset, which only the process that makes it has"
        raise error_type(
            f"The {what} {thing.name if is_workload else _label(thing)} cannot be sent to worker processes: {cause}. "
            f"{remedy} at the top level of a module."
        ) from error


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
        return get_sha256(Path(file))
    except OSError:
        return ""
