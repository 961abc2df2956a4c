"""Losses that compare the rows of a batch with each other, over the rows of all replicas."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops
from world import adam, batches, image_classes, sgd, whole_numbers, world_model

from tfaccel.ops import all_gather_rows


class GatheredContrastiveLoss(keras.losses.Loss):
    """Supervised contrastive: a replica's own rows against those of all replicas."""

    def call(self, labels: Any, feature_vectors: Any) -> Any:
        vectors = ops.normalize(feature_vectors, axis=1)
        logits = ops.matmul(vectors, ops.transpose(all_gather_rows(vectors))) / 0.5
        others = all_gather_rows(ops.reshape(labels, (-1,)))
        same = ops.cast(ops.equal(ops.reshape(labels, (-1, 1)), ops.reshape(others, (1, -1))), "float32")
        return ops.categorical_crossentropy(same / ops.sum(same, 1, keepdims=True), logits, from_logits=True)


@world_model(lambda: image_classes(8))
def supervised_contrastive_gathered() -> keras.Model:
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(8, "relu"), layers.Dense(4)])
    model.compile(optimizer=adam(), loss=GatheredContrastiveLoss())
    return model


class GatheredTowers(keras.Model):
    """Images and captions, each against all others of the global batch, in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.image_tower, self.text_tower = layers.Dense(4), layers.Embedding(9, 4, embeddings_initializer="normal")
        self.temperature = self.add_weight(shape=(), initializer="ones", name="temperature")

    def call(self, inputs: Any) -> Any:
        texts = self.text_tower(inputs["caption"])
        return self.image_tower(ops.reshape(inputs["image"], (-1, 64))), ops.mean(texts, axis=1)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        images, texts = (all_gather_rows(vectors) for vectors in y_pred)
        logits = ops.matmul(images, ops.transpose(texts)) / self.temperature
        labels = ops.arange(ops.shape(logits)[0])
        of_images = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        of_texts = keras.losses.sparse_categorical_crossentropy(labels, ops.transpose(logits), from_logits=True)
        return ops.mean(of_images + of_texts) / 2


@world_model(lambda: batches({"image": image_classes(8)["x"], "caption": whole_numbers(3, below=9)}))
def image_and_text_towers() -> keras.Model:
    model = GatheredTowers()
    model.compile(optimizer=sgd())
    return model
