"""Preprocessing of encoded images and texts in TensorFlow graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfaccel.data.images.image_check import decoded
from tfaccel.data.raw_input import ImageInput, TextInput
from tfaccel.data.texts.vocabulary import NUM_SPECIAL_TOKENS, PADDING, UNKNOWN, Vocabulary

IMAGE_NAME, TEXT_NAME = "image_bytes", "text"
# Python's Unicode `\s` and `\w` as RE2 classes; RE2's own are ASCII only.
_SPACE = r"\s\x0b\x1c-\x1f\x{85}\pZ"
_WORD = r"\pL\pN_"


def preprocessing(
    raw_input: ImageInput | TextInput,
) -> tuple[Callable[[tf.Tensor], tf.Tensor], tf.TensorSpec, list[Any]]:
    """Builds the function that converts raw inputs to tensors; returns it with its input spec and lookup tables.

    The function takes a tensor of strings, of shape (rows,): the bytes of image files, or texts in UTF-8. It
    preprocesses them as in training: images are resized with antialiasing and rounded, texts split into the same
    tokens.
    """
    if isinstance(raw_input, ImageInput):
        return _image_decoder(raw_input), tf.TensorSpec((None,), tf.string, name=IMAGE_NAME), []
    table = token_table(raw_input.vocabulary)
    spec = tf.TensorSpec((None,), tf.string, name=TEXT_NAME)
    return _text_encoder(raw_input, table), spec, [table]


def _image_decoder(raw_input: ImageInput) -> Callable[[tf.Tensor], tf.Tensor]:
    size, num_channels = raw_input.image_size, raw_input.num_channels

    def image(content: tf.Tensor) -> tf.Tensor:
        resized = tf.round(tf.image.resize(decoded(content, num_channels), [size, size], antialias=True))
        return tf.ensure_shape(resized, [size, size, num_channels])

    return lambda contents: tf.map_fn(image, contents, fn_output_signature=tf.float32)


def token_table(vocabulary: Vocabulary) -> tf.lookup.StaticHashTable:
    """The lookup table of token ids."""
    with tf.device("/CPU:0"):
        numbers = tf.range(NUM_SPECIAL_TOKENS, len(vocabulary), dtype=tf.int64)
        entries = tf.lookup.KeyValueTensorInitializer(tf.constant(vocabulary.tokens, tf.string), numbers)
        return tf.lookup.StaticHashTable(entries, UNKNOWN)


def _text_encoder(raw_input: TextInput, table: tf.lookup.StaticHashTable) -> Callable[[tf.Tensor], tf.Tensor]:
    split = _words if raw_input.vocabulary.unit == "words" else _characters

    def encode(texts: tf.Tensor) -> tf.Tensor:
        tokens = split(texts)
        numbers = tokens.with_values(table.lookup(tokens.values))
        return tf.cast(numbers.to_tensor(PADDING, shape=[None, raw_input.num_tokens]), tf.int32)

    return encode


def _characters(texts: tf.Tensor) -> tf.RaggedTensor:
    return tf.strings.unicode_split(texts, "UTF-8")


def _words(texts: tf.Tensor) -> tf.RaggedTensor:
    """Lowercase words and punctuation, as in `tfaccel.data.texts.vocabulary.split_text`."""
    lower = tf.strings.lower(texts, encoding="utf-8")
    spaced = tf.strings.regex_replace(lower, f"[{_SPACE}]+", " ")
    apart = tf.strings.regex_replace(spaced, f"([{_WORD}]+|[^{_WORD}{_SPACE}])", r" \1 ")
    return tf.strings.split(apart)
