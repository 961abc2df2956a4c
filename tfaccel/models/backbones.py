"""Pretrained backbones: the digits backbone, Keras applications, or a `.keras` file."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfaccel.errors import WorkloadError
from tfaccel.keras_file import check_no_code
from tfaccel.known_names import did_you_mean
from tfaccel.local_path import local_path
from tfaccel.private_load_model import load_model

if TYPE_CHECKING:
    import keras

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
_SIGNED_PIXELS = ("MobileNetV2", "ResNet50V2", "Xception")  # expect pixels from -1 to 1; the others rescale raw ones
_MIN_SIZE = {"Xception": 71}
_OTHERS_SMALLEST_SIZE = 32


@dataclass(frozen=True)
class Backbone:
    """A backbone and the images it accepts.

    Args:
        name: "digits", a name in `APPLICATIONS`, or the path of a `.keras` file.
        image_size: height and width in pixels; None for any size from `smallest_size` up.
        num_channels: 1 or 3.
        smallest_size: min height and width in pixels.
    """

    name: str
    image_size: int | None
    num_channels: int
    smallest_size: int = 8

    def size_of_images(self, image_size: int | None, *, default: int) -> int:
        """Returns the height and width to resize images to, in pixels.

        Args:
            image_size: the requested size; None to choose one.
            default: size for networks that accept any size; raised to `smallest_size` if it is smaller.

        Raises:
            WorkloadError: if the network does not accept images of that size.
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
        WorkloadError: if it does not exist (the message suggests the closest name), or the model in the file does not
            have exactly one image input.
        ExportError: if the file would run code.

    Example:
        >>> find_backbone("digits").image_size, find_backbone("MobileNetV2").num_channels
        (8, 3)
    """
    text = os.fspath(name)
    if text in APPLICATIONS:
        return Backbone(text, None, 3, _MIN_SIZE.get(text, _OTHERS_SMALLEST_SIZE))
    if text != DIGITS and not text.endswith(".keras"):
        known = (DIGITS, *APPLICATIONS)
        hint = did_you_mean(text, known) or f" Backbones: {', '.join(known)}, or the path of a .keras file."
        raise WorkloadError(f"There is no backbone {text!r}.{hint}")
    path = DIGITS_FILE if text == DIGITS else local_path(text, WorkloadError)
    if text != DIGITS and zipfile.is_zipfile(path):
        check_no_code(path)
    shape = _input_shape(path)
    if len(shape) != 4 or shape[1] is None or shape[1] != shape[2] or shape[3] not in (1, 3):
        raise WorkloadError(
            f"The backbone {path} must take square images of a fixed size with 1 or 3 channels. Received: input shape "
            f"{tuple(shape)}."
        )
    return Backbone(text if text == DIGITS else os.path.abspath(text), shape[1], shape[3])


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


def load_backbone(backbone: Backbone, image_size: int, *, pretrained: bool) -> keras.Model:
    """Loads a model that maps raw pixel values to one feature vector per image.

    A final dense layer (the old classifier) of a model in a file is removed.

    Args:
        backbone: from `find_backbone`.
        image_size: height and width of the images in pixels.
        pretrained: whether to load pretrained weights instead of random ones.

    Raises:
        WorkloadError: if the weights cannot be downloaded, or the file cannot be loaded.
    """
    import keras

    if backbone.name in APPLICATIONS:
        return _application(backbone.name, image_size, pretrained=pretrained)
    path = DIGITS_FILE if backbone.name == DIGITS else Path(backbone.name)
    try:
        model = load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # Keras raises many kinds of errors for models that it cannot load.
        raise WorkloadError(f"Cannot load the backbone {path}: {str(error).splitlines()[0]}") from error
    if not pretrained:
        model = keras.models.clone_model(model)
    last = model.layers[-1]
    features = last.input if isinstance(last, keras.layers.Dense) else model.outputs[0]
    if len(features.shape) == 4:
        features = keras.layers.GlobalAveragePooling2D(name="pooled")(features)
    if len(features.shape) != 2:
        raise WorkloadError(
            f"The backbone {path} must output feature maps or vectors. Received: shape {tuple(features.shape)}."
        )
    return keras.Model(model.inputs, features, name="backbone")


def prepared_backbone(
    backbone: Backbone, image_size: int, *, pretrained: bool, lora_rank: int | None = None, remat: bool = False
) -> keras.Model:
    """Loads a backbone and prepares it for training.

    BatchNormalization layers of a pretrained network are frozen: few images give poor statistics.

    Args:
        backbone: from `find_backbone`.
        image_size: height and width of the images in pixels.
        pretrained: whether to load pretrained weights instead of random ones.
        lora_rank: rank of the low-rank updates (LoRA) of dense layers and convolutions; None for no LoRA.
        remat: recompute activations in the backward pass: less memory, more time.

    Raises:
        WorkloadError: like `load_backbone`; or if no layer supports LoRA.
    """
    import keras

    from tfaccel.training.private.private_api import all_layers
    from tfaccel.training.steps.rematerialized import rematerialize

    model = load_backbone(backbone, image_size, pretrained=pretrained)
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = not pretrained
    if lora_rank is not None:
        with_lora(model, lora_rank)
    if remat:  # Keras applications are nested as one layer of the backbone.
        rematerialize(next((layer for layer in model.layers if isinstance(layer, keras.Model)), model))
    return model


def _application(name: str, image_size: int, *, pretrained: bool) -> keras.Model:
    import keras

    inputs = x = keras.Input((image_size, image_size, 3))
    if name in _SIGNED_PIXELS:
        x = keras.layers.Rescaling(1 / 127.5, -1.0)(inputs)
    weights = "imagenet" if pretrained else None
    try:
        network = getattr(keras.applications, name)(
            include_top=False, weights=weights, pooling="avg", input_shape=(image_size, image_size, 3)
        )
    except (OSError, ValueError) as error:
        raise WorkloadError(
            f"Cannot download the ImageNet weights of {name}: {str(error).splitlines()[0]}. This needs the internet "
            "once. Without it, use pretrained=False (--nopretrained), or your own model: backbone=FILE.keras."
        ) from error
    return keras.Model(inputs, network(x), name="backbone")


def with_lora(backbone: keras.Model, rank: int) -> None:
    """Freezes a network except for low-rank updates of its dense layers and convolutions."""
    import keras

    from tfaccel.training.private.private_api import all_layers

    kinds = (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding, keras.layers.Conv2D)
    layers = [layer for layer in all_layers(backbone) if not isinstance(layer, keras.Model)]
    changed = [layer for layer in layers if type(layer) in kinds]
    if not changed:
        raise WorkloadError("LoRA is for dense layers and convolutions, and this backbone has none.")
    for layer in layers:
        layer.trainable = layer in changed
    for layer in changed:
        layer.enable_lora(rank)
