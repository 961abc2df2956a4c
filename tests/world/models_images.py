"""Image classification: convolutions, patches, mixers, and data that is mixed, augmented or weighted."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from world import adam, batches, image_classes, pixels, rows, whole_numbers, world_model


@world_model(image_classes)
def convolutional() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(8, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(loss="sparse_categorical_crossentropy", optimizer=adam(), metrics=["accuracy"])
    return model


def separable_residual_network(rate: float) -> keras.Model:
    inputs = keras.Input((12, 12, 3))
    x = layers.RandomFlip("horizontal", seed=1)(inputs) if rate else inputs
    x = layers.Conv2D(4, 3, strides=2, padding="same")(layers.Rescaling(1.0 / 255)(x))
    x = layers.Activation("relu")(layers.BatchNormalization(synchronized=True)(x))
    previous = x
    for size in (4, 8):
        x = layers.SeparableConv2D(size, 3, padding="same")(layers.Activation("relu")(x))
        x = layers.BatchNormalization(synchronized=True)(x)
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        x = layers.add([x, layers.Conv2D(size, 1, strides=2, padding="same")(previous)])
        previous = x
    x = layers.Dropout(rate, seed=2)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, layers.Dense(1)(x))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(adam(), loss, metrics=[keras.metrics.BinaryAccuracy(name="acc")])
    return model


@world_model(
    lambda: batches(255 * pixels(12, 12, 3), whole_numbers(below=2)), for_replicas=lambda: separable_residual_network(0)
)
def xception() -> keras.Model:
    return separable_residual_network(0.25)


class Patches(layers.Layer):
    def __init__(self, patch_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.patch_size = patch_size

    def call(self, images: Any) -> Any:
        patches = ops.image.extract_patches(images, size=self.patch_size)
        return ops.reshape(patches, (ops.shape(images)[0], -1, patches.shape[-1]))


class PatchEncoder(layers.Layer):
    def __init__(self, num_patches: int, width: int) -> None:
        super().__init__()
        self.num_patches = num_patches
        self.projection = layers.Dense(width)
        self.position_embedding = layers.Embedding(num_patches, width)

    def call(self, patch: Any) -> Any:
        positions = ops.expand_dims(ops.arange(0, self.num_patches, step=1), axis=0)
        return self.projection(patch) + self.position_embedding(positions)


def vision_transformer(rate: float) -> keras.Model:
    inputs = keras.Input((12, 12, 3))
    encoded = PatchEncoder(9, 8)(Patches(4)(inputs))
    for _ in range(1):
        x = layers.LayerNormalization(epsilon=1e-6)(encoded)
        attention = layers.MultiHeadAttention(num_heads=2, key_dim=4, dropout=rate)(x, x)
        encoded = layers.Add()([attention, encoded])
        x = layers.LayerNormalization(epsilon=1e-6)(encoded)
        x = layers.Dropout(rate)(layers.Dense(16, activation="gelu")(x))
        encoded = layers.Add()([layers.Dense(8)(x), encoded])
    representation = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(encoded))
    model = keras.Model(inputs, layers.Dense(5)(layers.Dropout(rate)(representation)))
    metrics = [
        keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
        keras.metrics.SparseTopKCategoricalAccuracy(2, name="top-2-accuracy"),
    ]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=1e-3, epsilon=1e-3)
    model.compile(optimizer=optimizer, loss=loss, metrics=metrics)
    return model


@world_model(lambda: image_classes(12, 3, 5), for_replicas=lambda: vision_transformer(0.0))
def vit() -> keras.Model:
    return vision_transformer(0.1)


class MLPMixerLayer(layers.Layer):
    def __init__(self, num_patches: int, width: int) -> None:
        super().__init__()
        self.num_patches = num_patches
        self.across = keras.Sequential([layers.Dense(6, activation="gelu"), layers.Dense(num_patches)])
        self.within = keras.Sequential([layers.Dense(6, activation="gelu"), layers.Dense(width)])
        self.normalize = layers.LayerNormalization(epsilon=1e-6)

    def build(self, input_shape: Any) -> None:
        self.normalize.build(input_shape)
        self.within.build(input_shape)
        self.across.build((input_shape[0], input_shape[2], self.num_patches))

    def call(self, inputs: Any) -> Any:
        channels = ops.transpose(self.normalize(inputs), axes=(0, 2, 1))
        x = ops.transpose(self.across(channels), axes=(0, 2, 1)) + inputs
        return x + self.within(self.normalize(x))


@world_model(lambda: image_classes(12, 3))
def mixer() -> keras.Model:
    inputs = keras.Input((12, 12, 3))
    x = layers.Dense(8)(Patches(4)(inputs))
    x = keras.Sequential([MLPMixerLayer(9, 8) for _ in range(2)])(x)
    model = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(adam(), loss, metrics=["acc"], steps_per_execution=2)
    return model


def mixed_images() -> dict[str, Any]:
    """Two shuffled copies of the images, mixed in the pipeline by a fraction drawn for each image."""
    images = pixels(12, 12, 1)
    labels = keras.utils.to_categorical(whole_numbers(below=3), 3).astype("float32")
    one, two = (tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(21, seed=s).batch(8) for s in (1, 2))
    fractions = tf.data.Dataset.from_tensor_slices(np.random.default_rng(3).beta(0.2, 0.2, size=21).astype("float32"))

    def mix(first: Any, second: Any, fraction: Any) -> Any:
        pixel_fraction = tf.reshape(fraction, (-1, 1, 1, 1))
        image = first[0] * pixel_fraction + second[0] * (1 - pixel_fraction)
        return image, first[1] * fraction[:, None] + second[1] * (1 - fraction[:, None])

    return {"x": tf.data.Dataset.zip(one, two, fractions.batch(8)).map(mix)}


@world_model(mixed_images)
def mixup() -> keras.Model:
    model = keras.Sequential([layers.Conv2D(4, 3, activation="relu"), layers.GlobalMaxPool2D(), layers.Dense(3)])
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    model.compile(optimizer=adam(), loss=loss, metrics=["accuracy"])
    return model


@world_model(lambda: batches(pixels(16, 16, 3), keras.utils.to_categorical(whole_numbers(below=3), 3)))
def frozen_backbone() -> keras.Model:
    """Transfer learning: a nested backbone whose batch normalization stays in inference mode."""
    inner = keras.Input((16, 16, 3))
    x = layers.Conv2D(4, 3, strides=2)(inner)
    backbone = keras.Model(inner, layers.ReLU()(layers.BatchNormalization()(x)), name="backbone")
    backbone.trainable = False
    inputs = keras.Input((16, 16, 3))
    x = layers.GlobalAveragePooling2D()(backbone(inputs, training=False))
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(x))
    backbone.layers[1].trainable = True  # the first convolution is fine-tuned
    model.compile(optimizer=keras.optimizers.RMSprop(0.01), loss="categorical_crossentropy", metrics=["accuracy"])
    return model


@world_model(lambda: {**batches(rows(10), whole_numbers(below=2)), "class_weight": {0: 0.3, 1: 1.9}})
def imbalanced_classes() -> keras.Model:
    model = keras.Sequential(
        [keras.Input((10,)), layers.Dense(16, activation="relu"), layers.Dense(1, activation="sigmoid")]
    )
    metrics = [
        keras.metrics.FalseNegatives(name="fn"),
        keras.metrics.TruePositives(name="tp"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.Recall(name="recall"),
        keras.metrics.AUC(name="auc"),
    ]
    model.compile(optimizer=adam(), loss="binary_crossentropy", metrics=metrics)
    return model


def noisy_images() -> dict[str, Any]:
    images = pixels(8, 8, 1)
    noisy = np.clip(images + 0.4 * rows(8, 8, 1, seed=7), 0.0, 1.0)
    return {**batches(noisy, images), "validation_data": (noisy[:5], images[:5])}


@world_model(noisy_images)
def denoising_autoencoder() -> keras.Model:
    inputs = layers.Input(shape=(8, 8, 1))
    x = layers.Conv2D(4, (3, 3), activation="relu", padding="same")(inputs)
    x = layers.MaxPooling2D((2, 2), padding="same")(x)
    x = layers.Conv2DTranspose(4, (3, 3), strides=2, activation="relu", padding="same")(x)
    x = layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)
    autoencoder = keras.Model(inputs, x)
    autoencoder.compile(optimizer=adam(), loss="binary_crossentropy")
    return autoencoder
