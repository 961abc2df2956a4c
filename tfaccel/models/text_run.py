"""Loads the model and the vocabularies of a finished text run."""

from __future__ import annotations

import os
from pathlib import Path

import keras

import tfaccel.models.language_model
import tfaccel.models.sequence_to_sequence  # noqa: F401  Importing registers the layers.
from tfaccel.data.texts.vocabulary import Vocabulary


def load_text_model(run_dir: str | os.PathLike[str], *vocabularies: str) -> tuple[keras.Model, list[Vocabulary]]:
    """Loads `model.keras` and the named vocabularies.

    Args:
        run_dir: folder of the run.
        vocabularies: names of JSON files in it, without the extension.

    Raises:
        DataError: if a vocabulary is missing or invalid.
    """
    found = [Vocabulary.load(Path(run_dir) / f"{name}.json") for name in vocabularies]
    return keras.models.load_model(Path(run_dir) / "model.keras", compile=False), found
