"""Pretrained backbones: the digits backbone, Keras applications, a `.keras` file, or a preset of KerasHub.

They are found without TensorFlow.
"""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfaccel.data.hub_presets import Preset, find_preset, may_be_preset
from tfaccel.errors import WorkloadError
from tfaccel.keras_file import check_no_code
from tfaccel.known_names import did_you_mean
from tfaccel.remote import readable_path

DIGITS = "digits"
DIGITS_FILE = Path(__file__).with_name("digits_backbone.keras")
DIGITS_CONVOLUTIONS = ((32, 1), (48, 1), (64, 2), (96, 1))  # filters and strides of the digits backbone

APPLICATIONS = (  # of keras.applications
    "MobileNetV2",
    "MobileNetV3Small",
    "MobileNetV3Large",
    "EfficientNetB0",
    "EfficientNetV2B0",
    "EfficientNetV2S",
    "ResNet50V2",
    "ConvNeXtTiny",
    "Xception",
)
_MIN_SIZE = {"Xception": 71}
_OTHERS_SMALLEST_SIZE = 32


@dataclass(frozen=True)
class Backbone:
    """A backbone and the images it accepts.

    Args:
        name: "digits", a name in `APPLICATIONS`, the path of a `.keras` file, or a preset of KerasHub.
        image_size: height and width in pixels; None for any size from `smallest_size` up.
        num_channels: 1 or 3.
        smallest_size: min height and width in pixels.
        preset: the preset of KerasHub, if it is one.
    """

    name: str
    image_size: int | None
    num_channels: int
    smallest_size: int = 8
    preset: Preset | None = None

    def size_of_images(self, image_size: int | None, *, default: int) -> int:
        """Returns the height and width to resize images to, in pixels.

        Args:
            image_size: the requested size; None to choose one.
            default: size for networks that accept any size; raised to `smallest_size` if it is smaller.
        """
        size = self.image_size or image_size or default
        size = max(size, self.smallest_size) if image_size is None else size
        if image_size not in (None, size) or size < self.smallest_size:
            takes = self.image_size or f"{self.smallest_size} or more"
            raise WorkloadError(f"The backbone {self.name} needs images of {takes} pixels. Received: {image_size}.")
        return size

    def check_channels(self, num_channels: int, source: str | os.PathLike[str]) -> None:
        """Raises WorkloadError for color images if the network accepts grayscale only."""
        if num_channels > self.num_channels:
            raise WorkloadError(f"The backbone {self.name} needs grayscale images, but those in {source} have colors.")


def find_backbone(name: str | os.PathLike[str]) -> Backbone:
    """Looks up a backbone by name or file, without importing TensorFlow.

    Raises:
        WorkloadError: if it does not exist (the message suggests the closest name), the model in the file does not
            have exactly one image input, or KerasHub is needed and not installed.
        ExportError: if the file would run code.

    Example:
        >>> find_backbone("digits").image_size, find_backbone("MobileNetV2").num_channels
        (8, 3)
    """
    text = os.fspath(name)
    if text in APPLICATIONS:
        return Backbone(text, None, 3, _MIN_SIZE.get(text, _OTHERS_SMALLEST_SIZE))
    if text != DIGITS and not text.endswith(".keras"):
        if may_be_preset(text):
            return _of_preset(find_preset(text))
        known = (DIGITS, *APPLICATIONS)
        hint = (
            did_you_mean(text, known)
            or f" Backbones: {', '.join(known)}, the path of a .keras file, or a preset of KerasHub."
        )
        raise WorkloadError(f"There is no backbone {text!r}.{hint}")
    path = DIGITS_FILE if text == DIGITS else readable_path(text, WorkloadError)
    if text != DIGITS and zipfile.is_zipfile(path):
        check_no_code(path)
    shape = _input_shape(path)
    if len(shape) != 4 or shape[1] is None or shape[1] != shape[2] or shape[3] not in (1, 3):
        raise WorkloadError(
            f"The backbone {path} must take square images of a fixed size with 1 or 3 channels. Received: input shape "
            f"{tuple(shape)}."
        )
    return Backbone(text if text == DIGITS else os.path.abspath(text), shape[1], shape[3])


def _of_preset(preset: Preset) -> Backbone:
    preset.check_takes("images")
    height, width, num_channels = preset.config.get("image_shape") or (None, None, 3)
    if height != width or num_channels not in (1, 3):
        raise WorkloadError(
            f"The preset {preset.name} must take square images with 1 or 3 channels. Received: image_shape="
            f"{(height, width, num_channels)}."
        )
    smallest = 8 if height else _OTHERS_SMALLEST_SIZE
    return Backbone(preset.name, height, num_channels, smallest, preset)


def _input_shape(path: Path) -> list[Any]:
    """The shape of a saved model's only input, from its config."""
    try:
        with zipfile.ZipFile(path) as file:
            description = json.loads(file.read("config.json"))
        layers = description["config"]["layers"]
        inputs = [layer["config"]["batch_shape"] for layer in layers if layer["class_name"] == "InputLayer"]
    except FileNotFoundError as error:
        raise WorkloadError(f"There is no file {path} (`backbone`).") from error
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise WorkloadError(
            f"Cannot read {path} ({error}). A backbone is a functional or sequential Keras 3 model, saved as .keras."
        ) from error
    if len(inputs) != 1:
        raise WorkloadError(f"The backbone {path} must have one input. Received: {len(inputs)}.")
    return list(inputs[0])
