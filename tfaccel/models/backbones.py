"""Pre-trained networks whose features another task can use: the digits' own, Keras's, or a `.keras` file."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfaccel.errors import WorkloadError
from tfaccel.planning.layer_costs import LayerCost, layer_cost
from tfaccel.planning.near_name import did_you_mean

if TYPE_CHECKING:
    import keras

DIGITS = "digits"
DIGITS_FILE = Path(__file__).with_name("digits_backbone.keras")
DIGITS_CONVOLUTIONS = ((32, 1), (48, 1), (64, 2), (96, 1))  # filters and strides of the digits' own network
_DIGITS_SIZE = 8


@dataclass(frozen=True)
class Application:
    """A network of keras.applications.

    Args:
        signed_pixels: whether it takes pixels from -1 to 1; the others scale raw pixels themselves.
        pixel_multiplications: of a forward pass, for each pixel of the image.
        num_parameters: trainable numbers, without those of batch normalisations and the old head.
        num_normalisations: trainable numbers of batch normalisations.
        num_features: numbers that describe an image.
    """

    signed_pixels: bool
    pixel_multiplications: int
    num_parameters: int
    num_normalisations: int
    num_features: int


APPLICATIONS = {
    "MobileNetV2": Application(True, 5_969, 2_189_760, 34_112, 1280),
    "MobileNetV3Small": Application(False, 1_094, 914_896, 12_112, 576),
    "MobileNetV3Large": Application(False, 4_267, 2_947_552, 24_400, 960),
    "EfficientNetB0": Application(False, 7_664, 3_965_532, 42_016, 1280),
    "EfficientNetV2B0": Application(False, 14_286, 5_798_096, 60_608, 1280),
    "EfficientNetV2S": Application(False, 56_772, 20_023_616, 153_872, 1280),
    "ResNet50V2": Application(True, 69_360, 23_473_920, 45_440, 2048),
    "ConvNeXtTiny": Application(False, 88_783, 27_820_128, 0, 768),
    "Xception": Application(True, 90_697, 20_752_424, 54_528, 2048),
}
_SMALLEST_SIZE = {"Xception": 71}
_OTHERS_SMALLEST_SIZE = 32


@dataclass(frozen=True)
class Backbone:
    """Which network, and what it takes.

    Args:
        name: "digits", a name in `APPLICATIONS`, or the path of a `.keras` file.
        image_size: height and width in pixels; None where it takes any from `smallest_size` on.
        num_channels: 1 or 3.
        smallest_size: the smallest height and width.
    """

    name: str
    image_size: int | None
    num_channels: int
    smallest_size: int = 8


def find_backbone(name: str | os.PathLike[str]) -> Backbone:
    """The network of this name or in this file, without importing TensorFlow.

    Raises:
        WorkloadError: if there is none (with the nearest name), or the file is no model of one image.

    Example:
        >>> find_backbone("digits").image_size, find_backbone("MobileNetV2").num_channels
        (8, 3)
    """
    text = os.fspath(name)
    if text in APPLICATIONS:
        return Backbone(text, None, 3, _SMALLEST_SIZE.get(text, _OTHERS_SMALLEST_SIZE))
    if text != DIGITS and not text.endswith(".keras"):
        known = (DIGITS, *APPLICATIONS)
        hint = did_you_mean(text, known) or f" Backbones: {', '.join(known)}, or the path of a .keras file."
        raise WorkloadError(f"There is no backbone {text!r}.{hint}")
    path = DIGITS_FILE if text == DIGITS else Path(text)
    shape = _input_shape(path)
    if len(shape) != 4 or shape[1] is None or shape[1] != shape[2] or shape[3] not in (1, 3):
        raise WorkloadError(
            f"The backbone {path} must take square images of a fixed size with 1 or 3 channels. Received: input shape "
            f"{tuple(shape)}."
        )
    return Backbone(text if text == DIGITS else os.path.abspath(text), shape[1], shape[3])


def _input_shape(path: Path) -> list[Any]:
    """The shape of a saved model's one input, as its own description says."""
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


def classifier_cost(
    backbone: Backbone, image_size: int, num_classes: int, *, head_width: int = 0, frozen_normalisations: bool
) -> LayerCost | None:
    """The cost of the network with a normalised head; None for a model in a file. Keras's are counted by their pixels.

    Args:
        backbone: from `find_backbone`.
        image_size: height and width of the images in pixels.
        num_classes: outputs of the head.
        head_width: of a hidden layer in the head; 0 for none.
        frozen_normalisations: whether the backbone's batch normalisations do not learn.

    Example:
        >>> classifier_cost(find_backbone("digits"), 8, 5, frozen_normalisations=True).num_parameters
        108053
    """
    if backbone.name in APPLICATIONS:
        network = APPLICATIONS[backbone.name]
        normalisations = 0 if frozen_normalisations else network.num_normalisations
        costs = LayerCost(network.pixel_multiplications * image_size**2, network.num_parameters + normalisations)
        num_features = network.num_features
    elif backbone.name == DIGITS:
        costs, num_inputs, size = LayerCost(), backbone.num_channels, _DIGITS_SIZE
        for num_filters, strides in DIGITS_CONVOLUTIONS:
            size = -(-size // strides)
            costs += layer_cost(9 * num_inputs, num_filters, positions=size**2)
            num_inputs = num_filters
        num_features = num_inputs * size**2
    else:
        return None
    costs += LayerCost(num_parameters=2 * num_features)
    if head_width:
        costs, num_features = costs + layer_cost(num_features, head_width), head_width
    return costs + layer_cost(num_features, num_classes)


def load_backbone(backbone: Backbone, image_size: int, *, pretrained: bool) -> keras.Model:
    """The network: raw pixel values in, a vector of features for each image out.

    Of a model in a file, a dense layer at the end (its old classifier) is left out.

    Args:
        backbone: from `find_backbone`.
        image_size: height and width of the images in pixels.
        pretrained: with the weights that were learned; otherwise with fresh ones.

    Raises:
        WorkloadError: if the weights cannot be downloaded, or the file cannot be loaded.
    """
    import keras

    if backbone.name in APPLICATIONS:
        return _application(backbone.name, image_size, pretrained=pretrained)
    path = DIGITS_FILE if backbone.name == DIGITS else Path(backbone.name)
    try:
        model = keras.models.load_model(path, compile=False)
    except Exception as error:  # Keras raises errors of many kinds for models that it cannot load.
        raise WorkloadError(f"Cannot load the backbone {path}: {str(error).splitlines()[0]}") from error
    if not pretrained:
        model = keras.models.clone_model(model)
    last = model.layers[-1]
    features = last.input if isinstance(last, keras.layers.Dense) else model.outputs[0]
    if len(features.shape) == 4:
        features = keras.layers.GlobalAveragePooling2D(name="pooled")(features)
    if len(features.shape) != 2:
        raise WorkloadError(
            f"The backbone {path} must end in maps or vectors of features. Received: shape {tuple(features.shape)}."
        )
    return keras.Model(model.inputs, features, name="backbone")


def _application(name: str, image_size: int, *, pretrained: bool) -> keras.Model:
    import keras

    inputs = x = keras.Input((image_size, image_size, 3))
    if APPLICATIONS[name].signed_pixels:
        x = keras.layers.Rescaling(1 / 127.5, -1.0)(inputs)
    weights = "imagenet" if pretrained else None
    try:
        network = getattr(keras.applications, name)(
            include_top=False, weights=weights, pooling="avg", input_shape=(image_size, image_size, 3)
        )
    except (OSError, ValueError) as error:
        raise WorkloadError(
            f"The ImageNet weights of {name} cannot be had: {str(error).splitlines()[0]}. Download needs the internet "
            "once. Without it, use pretrained=False (--nopretrained), or a model of your own: backbone=FILE.keras."
        ) from error
    return keras.Model(inputs, network(x), name="backbone")
