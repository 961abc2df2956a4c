"""Loads Keras models from run directories and files, without running code from the file."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tfaccel.compressing.litert.file import is_litert_file, read_litert_raw_input
from tfaccel.data.raw_input import FILE_NAME, RawInput, load_raw_input
from tfaccel.errors import ExportError
from tfaccel.keras_file import check_keras_file
from tfaccel.local_path import local_path

if TYPE_CHECKING:
    import keras

MODEL_FILE = "model.keras"
_LIBRARIES = frozenset(("keras", "numpy", "tensorflow"))
_NO_CLASS = re.compile(r"Could not locate (?:class|function) '([^']+)'")
_MAX_REASON_LENGTH = 300  # characters


@dataclass(frozen=True)
class ModelPlace:
    """The location of a model, its name and its raw inputs.

    Args:
        path: a `.keras` or LiteRT file, or the folder of a SavedModel or of its versions.
        name: name under which it is requested: letters, digits, `-`, `_` and `.`.
        raw_input: description of its raw inputs; None if unknown.
    """

    path: Path
    name: str
    raw_input: RawInput | None = None


def place_of_run(run_dir: str | os.PathLike[str]) -> ModelPlace:
    """The model of a finished run.

    Raises:
        ExportError: if the folder is not a run directory, or its run is not finished.
    """
    folder = local_path(run_dir, ExportError)
    if not (folder / "config.json").is_file():
        raise ExportError(
            f"{folder} is not a run directory: it has no config.json. Give a folder written by `tfaccel train`."
        )
    if not (folder / MODEL_FILE).is_file():
        raise ExportError(f"The run in {folder} has no {MODEL_FILE} yet. Finish it: tfaccel train --resume=auto")
    try:
        recipe = json.loads((folder / "config.json").read_text())["recipe"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ExportError(f"{folder / 'config.json'} cannot be read ({error}).") from error
    known = load_raw_input(folder / FILE_NAME) if (folder / FILE_NAME).is_file() else None
    return ModelPlace(folder / MODEL_FILE, url_name(str(recipe)), known)


def raw_input_of_file(path: Path) -> RawInput | None:
    """The raw inputs of a model in a file, from the file itself or from the run directory around it."""
    known = read_litert_raw_input(path) if is_litert_file(path) else None
    if known is not None:
        return known
    for folder in (path.parent, path.parent.parent):  # `compress` writes its models to a subfolder of the run
        if (folder / FILE_NAME).is_file() and (folder / "config.json").is_file():
            return load_raw_input(folder / FILE_NAME)
    return None


def url_name(text: str) -> str:
    """Converts a text to a name that is valid in URLs.

    Example:
        >>> url_name("lines of 3 epochs")
        'lines_of_3_epochs'
    """
    return re.sub(r"[^\w.-]+", "_", text, flags=re.ASCII).strip("._-") or "model"


def load_keras_model(path: str | os.PathLike[str], *, modules: Sequence[str] = ()) -> keras.Model:
    """Loads the model in a `.keras` file, without compiling it.

    The file is checked first: it is rejected if it contains code (such as Lambda layers) or uses classes from modules
    other than Keras's and tfaccel's.

    Args:
        path: the file.
        modules: your modules that define layers of the model; they are imported first.

    Raises:
        ExportError: if the file is missing, invalid or rejected; the message says why.

    Example:
        >>> load_keras_model("nowhere.keras")
        Traceback (most recent call last):
        ...
        tfaccel.errors.ExportError: There is no file nowhere.keras.
    """
    file = local_path(path, ExportError)
    if file.suffix.lower() in (".h5", ".hdf5"):
        raise ExportError(
            f"{file} is refused: models in HDF5 files may run code when they are loaded. If you trust it, load it with "
            "Keras and save it as a .keras file."
        )
    if is_litert_file(file):
        raise ExportError(
            f"{file} is a LiteRT file, which cannot be converted to a Keras model. `tfaccel predict --model={file}` "
            "supports it; otherwise give the run (--run_dir) or the .keras file that it was converted from."
        )
    import_modules(modules)
    check_keras_file(file, modules=modules)
    from tfaccel.training.private.private_trainer import load_model

    try:
        model = load_model(file, compile=False, safe_mode=True, custom_objects=_get_classes(modules))
    except ExportError:
        raise
    except Exception as error:  # Keras raises many kinds of errors for files that it cannot load.
        missing = _NO_CLASS.search(str(error))
        if missing is not None and _is_of_user(str(error)):
            raise ExportError(_own_class(missing[1], file, modules)) from error
        raise ExportError(f"Keras cannot load {file}: {_reason(error)}") from error
    return model


def _get_classes(modules: Sequence[str]) -> dict[str, type]:
    """The classes that the user's modules define, by the names that Keras has for classes that are not registered."""
    found = [value for module in modules for value in vars(sys.modules[module]).values() if isinstance(value, type)]
    return {one.__name__: one for one in found if one.__module__ in modules}


def _is_of_user(text: str) -> bool:
    """Whether Keras's message is about an object of the user's own module, not of Python or a library."""
    module = re.match(r"\{'module': '(\w+)", text.rpartition("Full object config: ")[2])
    return module is None or module[1] not in _LIBRARIES | sys.stdlib_module_names


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
    text = " ".join(str(error).split()).rpartition("Exception encountered: ")[2]
    return text.partition(" Full object config: ")[0][:_MAX_REASON_LENGTH] or type(error).__name__


def served_model(model: keras.Model) -> keras.Model:
    """The part of a model to deploy: its attribute `served_model`, if it has one, otherwise the whole model."""
    part: keras.Model = getattr(model, "served_model", model)
    return part


def import_modules(modules: Sequence[str]) -> None:
    """Imports the user's modules; the current folder is searched too.

    Raises:
        ExportError: if one cannot be imported.
    """
    if modules and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # user modules may raise anything
            raise ExportError(f"Cannot import the module {module!r}: {type(error).__name__}: {error}") from error
