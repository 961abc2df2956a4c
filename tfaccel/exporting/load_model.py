"""`load_run`, and Keras models of run directories and files, loaded without running code from the file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfaccel.compressing.litert.file import is_litert_file, read_litert_raw_input
from tfaccel.data.raw_input import FILE_NAME, RawInput, load_raw_input
from tfaccel.errors import ExportError, RunDirError
from tfaccel.keras_file import load_checked
from tfaccel.known_names import suggests_names
from tfaccel.planning.load_workload import check_finished_run, check_run_files
from tfaccel.remote import readable_path
from tfaccel.short_repr import noun
from tfaccel.training.run.checkpoint_files import checkpoint_weights
from tfaccel.training.run.result import TrainResult

if TYPE_CHECKING:
    import keras

MODEL_FILE, _RESULT_FILE = "model.keras", "result.json"


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
    """The model of a finished run."""
    folder = readable_path(run_dir, ExportError)
    if not (folder / "config.json").is_file():
        raise ExportError(
            f"{folder} is not a run directory: it has no config.json. Give a folder written by `tfaccel train`."
        )
    missing = [name for name in (MODEL_FILE, _RESULT_FILE) if not (folder / name).is_file()]
    if missing:
        raise ExportError(f"The run in {folder} has no {missing[0]} yet. Finish it: tfaccel train --resume=auto")
    check_run_files(folder)
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
        if (folder / "config.json").is_file():
            if (folder / _RESULT_FILE).is_file():
                check_run_files(folder)
            return load_raw_input(folder / FILE_NAME) if (folder / FILE_NAME).is_file() else None
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

    Example:
        >>> load_keras_model("nowhere.keras")
        Traceback (most recent call last):
        ...
        tfaccel.errors.ExportError: There is no file nowhere.keras.
    """
    file = readable_path(path, ExportError)
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
    return load_checked(file, modules=modules)


def served_model(model: keras.Model) -> keras.Model:
    """The part of a model to deploy: its attribute `served_model`, if it has one, otherwise the whole model."""
    part: keras.Model = getattr(model, "served_model", model)
    return part


@noun(kw_only=False)
class Run:
    """A finished run.

    Args:
        path: its directory.
        config: its name, options, epochs, seed and batch size.
        result: its plan, metrics, times and verdict.

    Example:
        >>> [field for field in Run.__dataclass_fields__]
        ['path', 'config', 'result']
    """

    path: Path
    config: dict[str, Any]
    result: TrainResult

    def load_model(self, *, modules: Sequence[str] = (), checkpoint: str | None = None) -> keras.Model:
        """Loads the trained model, without compiling it.

        Args:
            modules: your modules that define layers of the model.
            checkpoint: None for the model at the end of training; "best" for the weights of the checkpoint with the
                lowest `val_loss` (`loss` without validation data), or the name of a folder in `checkpoints/`.

        Raises:
            ExportError: if the file is invalid, or contains code.
            RunDirError: if there is no such checkpoint, or it is broken.
        """
        if checkpoint is None:
            return load_keras_model(self.path / MODEL_FILE, modules=modules)
        weights = checkpoint_weights(self.path / "checkpoints", checkpoint)
        model = load_keras_model(self.path / MODEL_FILE, modules=modules)
        model.set_weights(weights)
        return model


@suggests_names
def load_run(run_dir: str | os.PathLike[str]) -> Run:
    """Loads a finished run.

    Args:
        run_dir: the directory.

    Raises:
        RunDirError: if there is no finished run, or its files cannot be read.

    Example:
        >>> load_run("no/such/run")
        Traceback (most recent call last):
        ...
        tfaccel.errors.RunDirError: There is no run directory no/such/run. Give the directory of a finished run.
    """
    path = check_finished_run(run_dir)
    check_run_files(path)
    try:
        config = dict(json.loads((path / "config.json").read_text()))
        result = TrainResult.from_json({**json.loads((path / "result.json").read_text()), "run_dir": str(path)})
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise RunDirError(f"The run in {path} cannot be read ({error}). Give the directory of another run.") from error
    return Run(path, config, result)
