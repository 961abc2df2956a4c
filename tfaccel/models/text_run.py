"""Loads the model and the vocabularies of a finished text run."""

from __future__ import annotations

import os

import keras

import tfaccel.models.language_model
import tfaccel.models.sequence_to_sequence  # noqa: F401  Importing registers the layers.
from tfaccel.data.texts.vocabulary import Vocabulary
from tfaccel.errors import RunDirError
from tfaccel.local_path import local_path


def load_text_model(run_dir: str | os.PathLike[str], *vocabularies: str) -> tuple[keras.Model, list[Vocabulary]]:
    """Loads `model.keras` and the named vocabularies.

    Args:
        run_dir: folder of the run.
        vocabularies: names of JSON files in it, without the extension.

    Raises:
        DataError: if a vocabulary is missing or invalid.
    """
    folder = local_path(run_dir, RunDirError)
    found = [Vocabulary.load(folder / f"{name}.json") for name in vocabularies]
    return keras.models.load_model(folder / "model.keras", compile=False), found
