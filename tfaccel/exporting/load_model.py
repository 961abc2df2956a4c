"""Keras models from run directories and files, without running what a file brings along."""

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

from tfaccel.compressing.litert.archive import is_litert_file, read_litert_raw_input
from tfaccel.data.raw_input import FILE_NAME, RawInput, load_raw_input
from tfaccel.errors import ExportError
from tfaccel.exporting.keras_file import check_keras_file

if TYPE_CHECKING:
    import keras

MODEL_FILE = "model.keras"
_MAX_REASON_LENGTH = 300  # characters


@dataclass(frozen=True)
class ModelPlace:
    """Where a model lies, and what is known of it.

    Args:
        path: a `.keras` or LiteRT file, or the folder of a SavedModel or of its versions.
        name: by which it is asked for: letters, digits, `-`, `_` and `.`.
        raw_input: what its tensors are made of; None where that is not known.
    """

    path: Path
    name: str
    raw_input: RawInput | None = None


def place_of_run(run_dir: str | os.PathLike[str]) -> ModelPlace:
    """The model that a run left.

    Raises:
        ExportError: if the folder is no run directory, or its run has not ended.
    """
    folder = Path(run_dir)
    if not (folder / "config.json").is_file():
        raise ExportError(
            f"{folder} is no run directory: it has no config.json. Name a folder that `tfaccel train` left."
        )
    if not (folder / MODEL_FILE).is_file():
        raise ExportError(f"The run in {folder} has left no {MODEL_FILE} yet. Finish it: tfaccel train --resume=auto")
    try:
        recipe = json.loads((folder / "config.json").read_text())["recipe"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ExportError(f"{folder / 'config.json'} cannot be read ({error}).") from error
    known = load_raw_input(folder / FILE_NAME) if (folder / FILE_NAME).is_file() else None
    return ModelPlace(folder / MODEL_FILE, url_name(str(recipe)), known)


def raw_input_of_file(path: Path) -> RawInput | None:
    """What the inputs of a model in a file are made of: as it says itself, or the run that it lies in."""
    known = read_litert_raw_input(path) if is_litert_file(path) else None
    if known is not None:
        return known
    for folder in (path.parent, path.parent.parent):  # `compress` leaves its models in a folder of the run
        if (folder / FILE_NAME).is_file() and (folder / "config.json").is_file():
            return load_raw_input(folder / FILE_NAME)
    return None


def url_name(text: str) -> str:
    """A text as a name in addresses.

    Example:
        >>> url_name("lines of 3 epochs")
        'lines_of_3_epochs'
    """
    return re.sub(r"[^\w.-]+", "_", text, flags=re.ASCII).strip("._-") or "model"


def load_keras_model(path: str | os.PathLike[str], *, modules: Sequence[str] = ()) -> keras.Model:
    """The model in a `.keras` file, not compiled.

    The file is looked through before anything in it is used: one that holds code (Lambda layers and the like), or
    names classes from modules other than Keras's and tfaccel's, is refused.

    Args:
        path: the file.
        modules: modules of your own that define layers of the model; they are imported first.

    Raises:
        ExportError: if the file is missing, broken, or refused; the message says why.

    Example:
        >>> load_keras_model("nowhere.keras")
        Traceback (most recent call last):
        ...
        tfaccel.errors.ExportError: There is no file nowhere.keras.
    """
    file = Path(path)
    if file.suffix.lower() in (".h5", ".hdf5"):
        raise ExportError(
            f"{file} is refused: models in HDF5 files may run code when they are loaded. Load it where you trust it, "
            "and save it as a .keras file."
        )
    if is_litert_file(file):
        raise ExportError(
            f"{file} is a LiteRT file, from which no Keras model can be made. `tfaccel predict --model={file}` takes "
            "it; elsewhere give the run (--run_dir) or the .keras file that it was made from."
        )
    import_modules(modules)
    check_keras_file(file, modules=modules)
    import keras

    try:
        model = keras.saving.load_model(file, compile=False, safe_mode=True)
    except Exception as error:  # Keras raises errors of many kinds for files that it cannot load.
        raise ExportError(f"Keras cannot load {file}: {_reason(error)}") from error
    return model


def _reason(error: BaseException) -> str:
    """What Keras says of the innermost part that it cannot load, without that part's whole configuration."""
    text = " ".join(str(error).split()).rpartition("Exception encountered: ")[2]
    return text.partition(" Full object config: ")[0][:_MAX_REASON_LENGTH] or type(error).__name__


def served_model(model: keras.Model) -> keras.Model:
    """The part of a model that is of use after training: what its class names so (`served_model`), or all of it."""
    part: keras.Model = getattr(model, "served_model", model)
    return part


def import_modules(modules: Sequence[str]) -> None:
    """Imports modules of the user's; the current folder is searched too.

    Raises:
        ExportError: if one cannot be imported.
    """
    if modules and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever the module raises
            raise ExportError(f"Cannot import the module {module!r}: {type(error).__name__}: {error}") from error
