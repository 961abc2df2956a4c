"""The flags that name a trained model, shared by the commands that use one."""

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import flags

from tfaccel.errors import ExportError
from tfaccel.exporting.load_model import ModelPlace, place_of_run, raw_input_of_file, url_name
from tfaccel.remote import readable_path
from tfaccel.scripts.command_flags import Flag

MODEL_FLAGS: dict[str, Flag] = {
    "run_dir": (str, "the directory of a finished run"),
    "model": (
        str,
        "instead of --run_dir: a .keras or .tflite file, a SavedModel, or a folder of its versions or of an export",
    ),
    "modules": ([], "your modules that define layers of a .keras file; only name modules that you trust"),
    "name": (str, "the model's name (default: that of the recipe, the export or the file)"),
}


def chosen_place(values: flags.FlagValues) -> ModelPlace:
    """The model given by --run_dir or --model.

    Raises:
        ExportError: if none or both are given, or there is no model.
    """
    run_dir, model = values.run_dir, values.model
    if (run_dir is None) == (model is None):
        received = "neither" if run_dir is None else "both"
        raise ExportError(f"Give --run_dir=DIR or --model=PATH. Received: {received}.")
    place = place_of_run(run_dir) if run_dir is not None else _place_of_model(readable_path(model, ExportError))
    name = values.name
    if name is not None and url_name(name) != name:
        raise ExportError(f"--name must have letters, digits, '-', '_' and '.' only. Received: --name={name}.")
    return ModelPlace(place.path, name or place.name, place.raw_input)


def _place_of_model(path: Path) -> ModelPlace:
    if not path.exists():
        raise ExportError(f"There is no file or folder {path} (--model).")
    if path.is_file():
        return ModelPlace(path, url_name(path.stem), raw_input_of_file(path))
    if (path / "config.json").is_file() and (path / "model.keras").is_file():
        return place_of_run(path)
    from tfaccel.exporting.saved_model_files import GRAPH_FILE, holds_model, no_saved_model, read_notes, version_folders

    folder = path / "saved_model" if (path / "export.json").is_file() else path
    places = [*reversed(version_folders(folder).values()), folder]
    if not (folder / GRAPH_FILE).is_file() and not any(map(holds_model, places[:-1])):
        raise ExportError(no_saved_model(folder))
    noted = next(filter(None, (read_notes(place)[0] for place in places)), None)
    return ModelPlace(folder, url_name(noted or path.resolve().name))


@contextlib.contextmanager
def shown_log(*, program: str) -> Iterator[None]:
    """Shows tfaccel's log on standard error."""
    logger = logging.getLogger("tfaccel")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"{program}: %(message)s"))
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


@contextlib.contextmanager
def clean_end() -> Iterator[None]:
    """Makes SIGTERM end the program like an error, so that no partial files remain; the exit status is 143."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, frame: Any) -> None:
    del frame
    sys.exit(128 + number)
