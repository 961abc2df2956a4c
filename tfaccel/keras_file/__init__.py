"""Loads a `.keras` file after checking that this runs no code from the file."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfaccel.errors import ExportError, in_one_line
from tfaccel.keras_file.private_load_model import load_model

if TYPE_CHECKING:
    import keras

_CONFIG = "config.json"
_MAX_CONFIG_BYTES = 256 * 2**20
_MAX_MEMBERS = 10_000
_MAX_RATIO = 1000  # compression ratio of a member
_SMALL_BYTES = 2**20  # members up to this size may have any compression ratio
_MAX_TOTAL_RATIO, _SMALL_TOTAL_BYTES = 100, 256 * 2**20  # the same for all members together
# Classes that run code: from the file, from pickles, or from a SavedModel elsewhere.
_RUNS_CODE = {
    "Lambda": "a Lambda layer, which runs Python code from the file",
    "__lambda__": "a Python lambda, which is code from the file",
    "TFSMLayer": "a TFSMLayer, which runs a SavedModel from another place",
    "TorchModuleWrapper": "a TorchModuleWrapper, which unpickles what is in the file",
    "JaxLayer": "a JaxLayer, which runs code",
    "FlaxLayer": "a FlaxLayer, which runs code",
}
_OWN_CLASSES = re.compile(r"tfaccel\.(data|models|parity|recipes|training)(\.\w+)+")
_FREE_PACKAGES = ("keras", "builtins", "numpy", "tensorflow")
_EXTRAS = ("keras_hub",)  # packages of layers in many modules, to be trusted as a whole
_NO_CLASS = re.compile(r"Could not locate (?:class|function) '([^']+)'")
_MAX_REASON_LENGTH = 300  # characters


def check_keras_file(path: Path, *, modules: Iterable[str] = ()) -> None:
    """Checks the config of a `.keras` file, and imports the tfaccel modules that define its layers.

    Args:
        path: the file.
        modules: the user's modules, already imported, whose classes the file may use.

    Raises:
        ExportError: if it is not a `.keras` file, is a decompression bomb, would write outside its folder, would run
            code, or uses a class that is not from Keras, tfaccel or `modules`.
    """
    entries = check_no_code(path)
    named: dict[str, set[str]] = {}
    for entry in entries:
        if entry.get("module"):
            named.setdefault(str(entry["module"]), set()).add(str(entry.get("registered_name")))
    for module, classes in sorted(named.items()):
        _check_module(module, classes, path, tuple(modules))


def check_no_code(path: Path) -> list[dict[str, Any]]:
    """Checks the config of a `.keras` file whose classes are known, because this program defines them.

    Returns:
        The entries of the config that name a class or a function.
    """
    entries = _get_entries(path)
    for entry in entries:
        reason = _RUNS_CODE.get(str(entry.get("class_name")))
        if reason is not None:
            layer = _name(entry)
            where = f" (layer {layer!r})" if layer else ""
            raise ExportError(
                f"{path} is refused: it holds {reason}{where}. No code was run. Replace it with a custom layer class, "
                "and save the model again."
            )
    return entries


def _check_module(module: str, classes: set[str], path: Path, modules: tuple[str, ...]) -> None:
    package = module.partition(".")[0]
    if package in _FREE_PACKAGES or any(module == own or module.startswith(f"{own}.") for own in modules):
        return
    if _OWN_CLASSES.fullmatch(module):
        try:
            importlib.import_module(module)
        except ImportError as error:
            if _are_elsewhere(classes, module.rpartition(".")[0]):
                return
            raise ExportError(f"{path} needs {module}, which this version of tfaccel does not have: {error}") from error
        return
    if package in sys.stdlib_module_names:
        raise ExportError(f"{path} is refused: it uses Python's module {module!r}, which defines no layers.")
    raise ExportError(
        f"{path} names a class of the module {module!r}, which is not imported for a file that may come from anywhere. "
        f"If you trust that module, name it: --modules={package if package in _EXTRAS else module}"
    )


def _are_elsewhere(classes: set[str], package: str) -> bool:
    """Whether classes of a module that an earlier version had are registered by other modules of its package."""
    from keras.saving import get_registered_object

    with contextlib.suppress(ImportError):
        for found in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(found.name)
    return all(get_registered_object(name) is not None for name in classes)


def check_members(path: Path) -> None:
    """Checks the members of a `.keras` file of which only weights are loaded.

    Raises:
        ExportError: if it is not a `.keras` file, is a decompression bomb, or would write outside its folder.
    """
    _get_entries(path)


def _get_entries(path: Path) -> list[dict[str, Any]]:
    """The checked entries of the config that name a class or a function."""
    entries = list(_entries(_config(path)))
    for layer in map(_name, entries):
        if isinstance(layer, str) and (layer.startswith(("/", "\\")) or ".." in re.split(r"[\\/]", layer)):
            raise ExportError(
                f"{path} is refused: it names a layer {layer!r}, whose files would be written outside of their folder."
            )
    return entries


def _name(entry: dict[str, Any]) -> Any:
    config = entry.get("config")
    return config.get("name") if isinstance(config, dict) else None


def _config(path: Path) -> Any:
    """The content of `config.json` in the file."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            _check_members(members, path)
            return json.loads(archive.read(_CONFIG))
    except ExportError:
        raise
    except FileNotFoundError as error:
        raise ExportError(f"There is no file {path}.") from error
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, RecursionError) as error:
        reason = in_one_line(error) or type(error).__name__
        raise ExportError(f"{path} is not a model in Keras's format ({reason}). Save it with model.save().") from error


def _check_members(members: list[zipfile.ZipInfo], path: Path) -> None:
    if len(members) > _MAX_MEMBERS:
        raise ExportError(f"{path} is refused: it holds {len(members)} files; at most {_MAX_MEMBERS} are allowed.")
    total, total_packed = sum(member.file_size for member in members), sum(member.compress_size for member in members)
    if total > _SMALL_TOTAL_BYTES and total > _MAX_TOTAL_RATIO * total_packed:
        raise ExportError(f"{path} is refused: it grows from {total_packed:,} to {total:,} bytes when unpacked.")
    for member in members:
        name = member.filename
        if name.startswith(("/", "\\")) or ".." in re.split(r"[\\/]", name) or ":" in name:
            raise ExportError(f"{path} is refused: it holds {name!r}, which would be written outside of its folder.")
        packed = max(1, member.compress_size)
        if member.file_size > _SMALL_BYTES and member.file_size / packed > _MAX_RATIO:
            raise ExportError(
                f"{path} is refused: {name!r} in it grows from {packed:,} to {member.file_size:,} bytes when unpacked."
            )
        if name == _CONFIG and member.file_size > _MAX_CONFIG_BYTES:
            raise ExportError(f"{path} is refused: its {_CONFIG} has {member.file_size:,} bytes.")


def _entries(config: Any) -> Iterator[dict[str, Any]]:
    """All entries of a config that name a class or a function."""
    waiting = [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if "class_name" in value or "module" in value:
                yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def load_checked(path: Path, *, modules: Sequence[str] = ()) -> keras.Model:
    """Imports the user's modules, checks a `.keras` file with `check_keras_file`, and loads it without compiling it.

    Args:
        path: the file.
        modules: the user's modules that define layers of the model; the current folder is searched too.
    """
    _import_modules(modules)
    check_keras_file(path, modules=modules)
    try:
        return load_model(path, compile=False, safe_mode=True, custom_objects=_get_classes(modules))
    except ExportError:
        raise
    except Exception as error:  # Keras raises many kinds of errors for files that it cannot load.
        missing = _NO_CLASS.search(str(error))
        if missing is not None and _is_of_user(str(error)):
            raise ExportError(_own_class(missing[1], path, modules)) from error
        raise ExportError(f"Keras cannot load {path}: {_reason(error)}") from error


def _import_modules(modules: Sequence[str]) -> None:
    if modules and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # user modules may raise anything
            raise ExportError(f"Cannot import the module {module!r}: {type(error).__name__}: {error}") from error


def _get_classes(modules: Sequence[str]) -> dict[str, type]:
    """The classes that the user's modules define, by the names that Keras has for classes that are not registered."""
    found = [value for module in modules for value in vars(sys.modules[module]).values() if isinstance(value, type)]
    return {one.__name__: one for one in found if one.__module__ in modules}


def _is_of_user(text: str) -> bool:
    """Whether Keras's message is about an object of the user's own module, not of Python or a library."""
    module = re.match(r"\{'module': '(\w+)", text.rpartition("Full object config: ")[2])
    return module is None or module[1] not in {*_FREE_PACKAGES, *sys.stdlib_module_names}


def _own_class(name: str, file: Path, modules: Sequence[str]) -> str:
    """What to do about a class that Keras does not find."""
    if modules:
        return (
            f"{file} holds your class {name!r}, which no module that was named defines. Received: modules="
            f"{', '.join(modules)}. Name the module that defines it on its top level."
        )
    return (
        f"{file} holds your class {name!r}, which is not imported for a file that may come from anywhere. Name the "
        'module that defines it: --modules=mine for mine.py in this folder (in Python: modules=["mine"]); what the '
        'module runs as a script must stand under `if __name__ == "__main__":`.'
    )


def _reason(error: BaseException) -> str:
    """Keras's message about the innermost object that it cannot load, without that object's config."""
    text = in_one_line(error).rpartition("Exception encountered: ")[2]
    return text.partition(" Full object config: ")[0][:_MAX_REASON_LENGTH] or type(error).__name__
