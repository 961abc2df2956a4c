"""Converts a `.keras` file to a SavedModel, for a server that supports SavedModels only."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from tfaccel.exporting.float32_model import float32_model
from tfaccel.exporting.load_model import ModelPlace, load_keras_model, served_model
from tfaccel.exporting.sample_rows import raw_rows, sample_rows
from tfaccel.exporting.saved_model_files import write_saved_model
from tfaccel.exporting.signatures import DEFAULT, RAW, make_signatures

logger = logging.getLogger("tfaccel")


def write_served_copy(place: ModelPlace, folder: Path, *, modules: Sequence[str] = ()) -> None:
    """Writes version 1 of a SavedModel into a folder, in float32, without comparing it with the file.

    Args:
        place: location of the `.keras` file.
        folder: an empty folder.
        modules: the user's modules that define its layers.

    Raises:
        ExportError: if the file cannot be loaded.
    """
    whole = load_keras_model(place.path, modules=modules)
    logger.info("Converting %s to a SavedModel", place.path)
    model = float32_model(served_model(whole))
    signatures = make_signatures(model, place.raw_input)
    rows = sample_rows(signatures.inputs, model, place.raw_input, num_rows=1)
    requests = [(DEFAULT, rows)]
    if RAW in signatures.functions:
        requests.append((RAW, raw_rows(place.raw_input, rows)))
    write_saved_model(folder / "1", signatures, name=place.name, raw_input=place.raw_input, requests=requests)
