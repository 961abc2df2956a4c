"""What a run on texts left, read back to be used: its model and its vocabularies."""

from __future__ import annotations

import os
from pathlib import Path

import keras

import tfaccel.models.language_model
import tfaccel.models.sequence_to_sequence  # noqa: F401  Layers are known by name once their modules are imported.
from tfaccel.data.texts.vocabulary import Vocabulary


def load_text_model(run_dir: str | os.PathLike[str], *vocabularies: str) -> tuple[keras.Model, list[Vocabulary]]:
    """The model in `model.keras`, and the vocabularies in files of these names.

    Args:
        run_dir: of the run.
        vocabularies: names of JSON files in it, without their ending.

    Raises:
        DataError: if a vocabulary is missing or broken.
    """
    found = [Vocabulary.load(Path(run_dir) / f"{name}.json") for name in vocabularies]
    return keras.models.load_model(Path(run_dir) / "model.keras", compile=False), found
