"""KerasHub's tasks with tiny random backbones, trained on strings and images as they are: the tasks preprocess."""

from __future__ import annotations

from typing import Any

import keras
import keras_hub
import numpy as np
import tensorflow as tf
from world import NUM_ROWS, adam, batches, pixels, sgd, whole_numbers, world_model

WORDS = ("the", "film", "was", "good", "bad", "dull", "great", "plot")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def texts() -> list[str]:
    lengths = 2 + whole_numbers(below=5, seed=3)
    rows = whole_numbers(6, below=len(WORDS))
    return [" ".join(WORDS[i] for i in row[:length]) for row, length in zip(rows, lengths, strict=True)]


def bert_tokenizer() -> Any:
    return keras_hub.models.BertTokenizer(vocabulary=[*SPECIAL, *WORDS])


def bert_backbone() -> Any:
    return keras_hub.models.BertBackbone(
        vocabulary_size=len(SPECIAL) + len(WORDS),
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=8,
        max_sequence_length=8,
        dropout=0.0,
    )


@world_model(
    lambda: {
        **batches(np.array(texts()), whole_numbers(below=2)),
        "validation_data": (np.array(texts()[:5]), whole_numbers(below=2)[:5]),
    }
)
def hub_text_classifier() -> keras.Model:
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(bert_tokenizer(), sequence_length=8)
    model = keras_hub.models.BertTextClassifier(bert_backbone(), num_classes=2, preprocessor=preprocessor, dropout=0.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=adam(), loss=loss, metrics=["accuracy"])
    return model


@world_model(lambda: {"x": tf.data.Dataset.from_tensor_slices((texts(), whole_numbers(below=2))).batch(8)})
def hub_text_classifier_with_lora() -> keras.Model:
    """A dataset of strings; the backbone trains low-rank weights only."""
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(bert_tokenizer(), sequence_length=8)
    model = keras_hub.models.BertTextClassifier(bert_backbone(), num_classes=2, preprocessor=preprocessor, dropout=0.0)
    model.backbone.enable_lora(2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=sgd(), loss=loss, metrics=["accuracy"])
    return model


@world_model(lambda: batches(255 * pixels(10, 12, 3), whole_numbers(below=3)))
def hub_image_classifier() -> keras.Model:
    """Images of another size than the backbone's: the task resizes and scales them."""
    converter = keras_hub.layers.ViTImageConverter(image_size=(8, 8), scale=1 / 255.0)
    preprocessor = keras_hub.models.ViTImageClassifierPreprocessor(converter)
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(8, 8, 3), patch_size=(4, 4), num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=8
    )
    model = keras_hub.models.ViTImageClassifier(backbone, num_classes=3, preprocessor=preprocessor)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=sgd(), loss=loss, metrics=["accuracy"])
    return model


def characters() -> dict[str, int]:
    return {"<|endoftext|>": 0, "Ġ": 1, "th": 2, **{c: i + 3 for i, c in enumerate("abcdefghijklmnopqrstuvwxyz")}}


@world_model(lambda: {"x": np.array(texts()), "batch_size": 8})
def hub_causal_language_model() -> keras.Model:
    """Texts alone; the task makes tokens, targets and weights of them."""
    tokenizer = keras_hub.models.GPT2Tokenizer(vocabulary=characters(), merges=["t h"])
    preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=8)
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=len(characters()),
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=8,
        max_sequence_length=8,
        dropout=0.0,
    )
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=preprocessor)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=adam(), loss=loss, weighted_metrics=["accuracy"])
    return model


@world_model(
    lambda: {
        "x": {
            "token_ids": whole_numbers(8, below=8) + 5,
            "padding_mask": np.ones((NUM_ROWS, 8), "int32"),
            "mask_positions": whole_numbers(2, below=8),
        },
        "y": whole_numbers(2, below=8) + 5,
        "batch_size": 8,
        "sample_weight": pixels(2).round(),
    }
)
def hub_masked_language_model() -> keras.Model:
    """A task without a preprocessor, on tokens that are masked already."""
    model = keras_hub.models.RobertaMaskedLM(
        keras_hub.models.RobertaBackbone(
            vocabulary_size=13,
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=8,
            max_sequence_length=8,
            dropout=0.0,
        ),
        preprocessor=None,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=sgd(), loss=loss, weighted_metrics=["sparse_categorical_accuracy"])
    return model
