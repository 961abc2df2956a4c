"""Pretrained backbones as Keras models: loaded, and prepared for training.

The one that ships with tfaccel is a small network, pretrained on the digits 0 to 4 only. `python -m
tfaccel.models.pretrained FILE.keras` retrains it in half a minute and saves it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

from tfaccel.data.hub_presets import Preset
from tfaccel.data.images.image_data import ImageBatches, ImageMoves
from tfaccel.data.images.image_set import few_digits
from tfaccel.errors import WorkloadError
from tfaccel.keras_file.private_load_model import load_model
from tfaccel.models.backbones import APPLICATIONS, DIGITS, DIGITS_CONVOLUTIONS, DIGITS_FILE, Backbone
from tfaccel.training.private.private_api import all_layers
from tfaccel.training.steps.rematerialized import rematerialize

_SIGNED_PIXELS = ("MobileNetV2", "ResNet50V2", "Xception")  # expect pixels from -1 to 1; the others rescale raw ones
DIGITS_SEEN = range(5)
_EPOCHS, _BATCH_SIZE, _SEED = 60, 64, 0
_MIXED = 0.5  # fraction of images that CutMix combines: fragments of strokes make better features than digits
_SIZE = 8


def _load_backbone(backbone: Backbone, image_size: int, *, pretrained: bool) -> keras.Model:
    """Loads a model that maps raw pixel values to one feature vector per image.

    A final dense layer (the old classifier) of a model in a file is removed.
    """
    if backbone.name in APPLICATIONS:
        return _application(backbone.name, image_size, pretrained=pretrained)
    if backbone.preset is not None:
        return _image_preset(backbone.preset, image_size, pretrained=pretrained)
    path = DIGITS_FILE if backbone.name == DIGITS else Path(backbone.name)
    try:
        model = load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # Keras raises many kinds of errors for models that it cannot load.
        raise WorkloadError(f"Cannot load the backbone {path}: {str(error).splitlines()[0]}") from error
    if not pretrained:
        model = keras.models.clone_model(model)
    features = _without_head(model)
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
        WorkloadError: if the weights cannot be downloaded, the file or preset cannot be loaded, or no layer supports
            LoRA.
    """
    model = _load_backbone(backbone, image_size, pretrained=pretrained)
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = not pretrained
    if lora_rank is not None:
        with_lora(model, lora_rank)
    if remat:
        rematerialize(_innermost(model))
    return model


def _innermost(model: keras.Model) -> keras.Model:
    """Keras applications are one layer of the backbone; the networks of presets are one of that layer."""
    inner = next((layer for layer in model.layers if isinstance(layer, keras.Model)), None)
    return model if inner is None else _innermost(inner)


def _without_head(model: keras.Model) -> Any:
    """The output of a model without its last layer, if that is dense."""
    last = model.layers[-1]
    return last.input if isinstance(last, keras.layers.Dense) else model.outputs[0]


def preset_text_features(preset: Preset, *, num_tokens: int, pretrained: bool = True) -> keras.Model:
    """The text classifier in a preset of KerasHub, without its last layer: maps token ids to a vector per text.

    Args:
        preset: from `find_preset`.
        num_tokens: tokens per text.
        pretrained: whether to load its weights instead of drawing random ones.

    Raises:
        WorkloadError: if it cannot be loaded, or takes fewer tokens.
    """
    task = preset.load("TextClassifier", num_classes=2, preprocessor=None, load_weights=pretrained)
    longest = getattr(task.backbone, "max_sequence_length", None) or num_tokens
    if num_tokens > longest:
        raise WorkloadError(
            f"The preset {preset.name} takes texts of at most {longest} tokens (`num_words`). Received: {num_tokens}."
        )
    return keras.Model(task.input, _without_head(task), name="features")


def _image_preset(preset: Preset, image_size: int, *, pretrained: bool) -> keras.Model:
    """The image classifier in a preset, without its last layer, with its scaling of pixels in the model."""
    task = preset.load("ImageClassifier", num_classes=2, load_weights=pretrained)
    _, size, _, num_channels = task.input_shape
    if size not in (None, image_size):
        raise WorkloadError(
            f"The preset {preset.name} needs images of {size} pixels (`image_size`). Received: {image_size}."
        )
    inputs = x = keras.Input((image_size, image_size, num_channels))
    converter = getattr(task.preprocessor, "image_converter", None)
    scale, offset = getattr(converter, "scale", None), getattr(converter, "offset", None)
    if scale is not None or offset is not None:
        scaling = (1.0 if scale is None else scale, 0.0 if offset is None else offset)
        x = keras.layers.Rescaling(*scaling, name="pixels_of_preset")(inputs)
    features = keras.Model(task.input, _without_head(task), name="features")
    return keras.Model(inputs, features(x), name="backbone")


def _application(name: str, image_size: int, *, pretrained: bool) -> keras.Model:
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
    kinds = (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding, keras.layers.Conv2D)
    layers = [layer for layer in all_layers(backbone) if not isinstance(layer, keras.Model)]
    changed = [layer for layer in layers if type(layer) in kinds]
    if not changed:
        raise WorkloadError("LoRA is for dense layers and convolutions, and this backbone has none.")
    for layer in layers:
        layer.trainable = layer in changed
    for layer in changed:
        layer.enable_lora(rank)


def build() -> keras.Model:
    """Builds a network that maps raw pixel values to one logit per class (five classes).

    Example:
        >>> build().count_params() < 110_000
        True
    """
    inputs = keras.Input((8, 8, 1), name="pixels")
    x = layers.Rescaling(1 / 63.75, -2.0)(inputs)
    for number, (num_filters, strides) in enumerate(DIGITS_CONVOLUTIONS):
        kernel = {"kernel_initializer": keras.initializers.HeNormal(seed=number), "name": f"convolution_{number}"}
        x = layers.Conv2D(num_filters, 3, strides, padding="same", activation="relu", **kernel)(x)
    initializer = keras.initializers.GlorotUniform(seed=10)
    logits = layers.Dense(len(DIGITS_SEEN), kernel_initializer=initializer, dtype="float32", name="logits")
    return keras.Model(inputs, logits(layers.Flatten(name="features")(x)), name="digits_backbone")


def train(path: str | os.PathLike[str], *, epochs: int = _EPOCHS) -> float:
    """Trains the network on the digits 0 to 4 and saves it; returns the test accuracy."""
    images, model = few_digits(DIGITS_SEEN), build()
    batches = ImageBatches(images, ImageMoves(rotation=0.2, zoom=0.15, shift=0.1))
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    rates = keras.optimizers.schedules.CosineDecay(3e-3, epochs * (images.num_train_images // _BATCH_SIZE))
    model.compile(keras.optimizers.AdamW(rates), loss=loss, metrics=["accuracy"])
    for epoch in range(epochs):
        made = batches.train(_BATCH_SIZE, seed=_SEED, epoch=epoch).as_numpy_iterator()
        pixels, labels = (np.concatenate(parts) for parts in zip(*made, strict=True))
        pixels, labels = mixed(pixels, labels, np.random.default_rng([_SEED, epoch]))
        model.fit(pixels, labels, batch_size=_BATCH_SIZE, shuffle=False, verbose=0)
    accuracy = float(model.evaluate(batches.test(_BATCH_SIZE), verbose=0)[1])
    keras.Model(model.inputs, model.outputs, name=model.name).save(path)  # without optimizer
    return accuracy


def mixed(pixels: np.ndarray, labels: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Replaces the lower or right part of some images by another image's; labels are mixed in proportion.

    Source: Yun et al., CutMix, 2019, https://arxiv.org/abs/1905.04899

    Example:
        >>> pixels, labels = np.zeros((40, 8, 8, 1)), np.eye(2)[np.arange(40) % 2]
        >>> sorted({float(row[0]) for row in mixed(pixels, labels, np.random.default_rng(0))[1]})
        [0.0, 0.375, 0.5, 0.625, 1.0]
    """
    others = generator.permutation(len(pixels))
    starts = np.where(generator.random(len(pixels)) < _MIXED, generator.integers(3, 6, len(pixels)), _SIZE)
    is_other = np.arange(_SIZE) >= starts[:, None]  # of shape (num_images, size)
    is_lower = generator.random(len(pixels)) < 0.5
    masks = np.where(is_lower[:, None, None], is_other[:, :, None], is_other[:, None, :])[..., None]
    parts = (starts / _SIZE)[:, None]
    return np.where(masks, pixels[others], pixels), parts * labels + (1 - parts) * labels[others]


if __name__ == "__main__":
    sys.stdout.write(f"{train(sys.argv[1]):.4f}\n")
