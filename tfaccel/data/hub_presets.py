"""Presets of KerasHub: found without TensorFlow, and loaded; and which models are its tasks.

A preset is a folder that `save_to_preset` wrote, or a name that KerasHub downloads.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfaccel.errors import WorkloadError, in_one_line
from tfaccel.known_names import did_you_mean

_MAX_REASON_LENGTH = 300  # characters


@dataclass(frozen=True)
class Preset:
    """A preset of a backbone.

    Args:
        name: the absolute path of a folder, or a name that KerasHub downloads.
        class_name: of the backbone in a folder, such as "BertBackbone"; "" if it is to be downloaded.
        config: the arguments of that backbone; empty if it is to be downloaded.
    """

    name: str
    class_name: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_folder(self) -> bool:
        """Whether it is on this machine."""
        return bool(self.class_name)

    def check_takes(self, what: str) -> None:
        """Raises WorkloadError for a backbone in a folder that takes texts instead of images, or the other way round.

        Args:
            what: "images" or "texts".
        """
        own, other = ("image_shape", "vocabulary_size") if what == "images" else ("vocabulary_size", "image_shape")
        if other in self.config and own not in self.config:
            raise WorkloadError(f"The preset {self.name} holds a {self.class_name}, which takes no {what}.")

    def load(self, kind: str, **options: Any) -> Any:
        """Loads a class of `keras_hub.models` from the preset.

        Args:
            kind: the class, such as "ImageClassifier"; KerasHub finds the one that fits the backbone.
            options: arguments of its `from_preset`.

        Raises:
            WorkloadError: if it cannot be loaded; says why in one line.
        """
        import keras_hub

        found = getattr(keras_hub.models, kind)
        if not self.is_folder and "://" not in self.name and self.name not in found.presets:
            hint = did_you_mean(self.name, found.presets)
            raise WorkloadError(f"KerasHub has no preset {self.name!r} for {kind}.{hint}")
        try:
            return found.from_preset(self.name, **options)
        except Exception as error:  # KerasHub and the hubs raise many kinds of errors.
            reason = in_one_line(error, _MAX_REASON_LENGTH) or type(error).__name__
            raise WorkloadError(f"Cannot load the preset {self.name} with {kind}.from_preset: {reason}") from error


def may_be_preset(name: str) -> bool:
    """Whether a name is a folder, or is written as names of presets are.

    Example:
        >>> may_be_preset("bert_base_en"), may_be_preset("hf://google/bert"), may_be_preset("MobileNetV2")
        (True, True, False)
    """
    return "_" in name or os.sep in name or os.path.isdir(name)


def find_preset(name: str | os.PathLike[str]) -> Preset:
    """Looks up a preset without importing TensorFlow.

    A folder is read here; a preset that is to be downloaded is only looked for when it is loaded.

    Raises:
        WorkloadError: if KerasHub is not installed, or there is no such folder, or it holds no preset.

    Example:
        >>> find_preset("resnet_50_imagenet").is_folder
        False
        >>> find_preset("presets/bert")
        Traceback (most recent call last):
            ...
        tfaccel.errors.WorkloadError: There is no folder presets/bert (`backbone`).
    """
    text = os.fspath(name)
    if importlib.util.find_spec("keras_hub") is None:
        raise WorkloadError(
            f"`backbone` is a preset of KerasHub, which is not installed. Install it: pip install 'tfaccel[hub]'. "
            f"Received: {text!r}."
        )
    if "://" in text or not (os.path.isdir(text) or os.sep in text):
        return Preset(text)
    folder = Path(text)
    if not folder.is_dir():
        raise WorkloadError(f"There is no folder {folder} (`backbone`).")
    try:
        described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return Preset(os.path.abspath(folder), str(described["class_name"]), dict(described["config"]))
    except (OSError, KeyError, ValueError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise WorkloadError(
            f"The folder {folder} (`backbone`) is no preset of KerasHub: cannot read config.json ({reason}). "
            "`save_to_preset` of a backbone or task writes one."
        ) from error


def prepares_data(model: Any) -> bool:
    """Whether a model is a KerasHub task whose preprocessor prepares the data in its `fit`."""
    is_task = any(
        one.__name__ == "PipelineModel" and one.__module__.startswith("keras_hub") for one in type(model).__mro__
    )
    return is_task and getattr(model, "preprocessor", None) is not None
