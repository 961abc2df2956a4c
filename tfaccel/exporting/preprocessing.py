"""Preprocessing of encoded images, texts and table columns in TensorFlow graphs."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfaccel.data.images.image_check import decoded
from tfaccel.data.raw_input import ImageInput, TextInput
from tfaccel.data.tables.column_kinds import NUMERIC
from tfaccel.data.tables.encoding import (
    HASH_KEY,
    MISSING_CODE,
    NUM_SPECIAL_CODES,
    OTHER_CODE,
    CategoricalColumn,
    NumericColumn,
    TableEncoding,
)
from tfaccel.data.tables.table import HOUR_GROUP, MINUTE_GROUP, MISSING, NO_VALUE, PATTERNS, get_parts, is_valid
from tfaccel.data.texts.vocabulary import NUM_SPECIAL_TOKENS, PADDING, SPACE, UNKNOWN

IMAGE_NAME, TEXT_NAME = "image_bytes", "text"
# Python's Unicode `\s` and `\w` as RE2 classes; RE2's own are ASCII only.
_SPACE = r"\s\x0b\x1c-\x1f\x{85}\pZ"
_WORD = r"\pL\pN_"
_MISSING_CATEGORY = "|".join(map(re.escape, MISSING))  # texts that mean a missing value, as in files
_SPACES = r"[\s\v\p{Z}\x{1c}-\x{1f}\x{85}]+"
_MISSING_DATE = f"{_MISSING_CATEGORY}|(?i:{NO_VALUE})"


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
    table = _lookup_table(raw_input.vocabulary.tokens, NUM_SPECIAL_TOKENS, UNKNOWN)
    spec = tf.TensorSpec((None,), tf.string, name=TEXT_NAME)
    return _text_encoder(raw_input, table), spec, [table]


def _image_decoder(raw_input: ImageInput) -> Callable[[tf.Tensor], tf.Tensor]:
    size, num_channels = raw_input.image_size, raw_input.num_channels

    def image(content: tf.Tensor) -> tf.Tensor:
        resized = tf.round(tf.image.resize(decoded(content, num_channels), [size, size], antialias=True))
        return tf.ensure_shape(resized, [size, size, num_channels])

    return lambda contents: tf.map_fn(image, contents, fn_output_signature=tf.float32)


def _lookup_table(texts: Sequence[str], first: int, unknown: int) -> tf.lookup.StaticHashTable:
    """The lookup table that numbers texts from the first number on; others get the unknown one."""
    with tf.device("/CPU:0"):
        numbers = tf.range(first, first + len(texts), dtype=tf.int64)
        entries = tf.lookup.KeyValueTensorInitializer(tf.constant(texts, tf.string), numbers)
        return tf.lookup.StaticHashTable(entries, unknown)


def _text_encoder(raw_input: TextInput, table: tf.lookup.StaticHashTable) -> Callable[[tf.Tensor], tf.Tensor]:
    vocabulary = raw_input.vocabulary
    subwords = functools.partial(_subwords, table=table, longest=vocabulary.longest)
    of_unit: dict[str, Callable[[tf.Tensor], tf.RaggedTensor]] = {"words": _words, "subwords": subwords}
    split = of_unit.get(vocabulary.unit, _characters)

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


def _subwords(texts: tf.Tensor, *, table: tf.lookup.StaticHashTable, longest: int) -> tf.RaggedTensor:
    """The longest subwords that fit, from left to right, as in `tfaccel.data.texts.vocabulary.Vocabulary.split`."""
    ragged = _characters(tf.strings.join([SPACE, tf.strings.regex_replace(texts, " ", SPACE)]))
    characters, counts = ragged.to_tensor(""), tf.cast(ragged.row_lengths(), tf.int32)[:, tf.newaxis]
    places = tf.range(tf.shape(characters)[1])
    grown = tokens = characters
    sizes = tf.ones_like(characters, tf.int32)
    for size in range(2, longest + 1):
        nothing = tf.fill(tf.shape(characters[:, : size - 1]), "")
        grown = tf.strings.join([grown, tf.concat([characters[:, size - 1 :], nothing], axis=1)])
        is_known = (places + size <= counts) & (table.lookup(grown) != UNKNOWN)
        tokens, sizes = tf.where(is_known, grown, tokens), tf.where(is_known, size, sizes)

    def step(state: tuple[tf.Tensor, tf.Tensor], item: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        begins = state[0] == item[0]  # the token before ends here
        return tf.where(begins, item[0] + item[1], state[0]), begins

    nowhere = tf.zeros_like(counts[:, 0])
    _, begins = tf.scan(step, (places, tf.transpose(sizes)), (nowhere, tf.zeros_like(nowhere, tf.bool)))
    return tf.ragged.boolean_mask(tokens, tf.transpose(begins) & (places < counts))


def table_preprocessing(
    encoding: TableEncoding, names: Sequence[str]
) -> tuple[Callable[..., dict[str, tf.Tensor]], dict[str, tf.TensorSpec], list[Any]]:
    """Builds the function that encodes a table's columns; returns it with its input specs and lookup tables.

    The function takes one tensor of shape (rows,) per column, by name: float32 for numbers, or float64 if the column
    has an offset, with NaN for missing ones; strings for dates and categories, with "" for missing ones. It computes
    the same as `TableEncoding.encode`.

    Args:
        encoding: the columns.
        names: the names of its `sources` in the signature, in their order.
    """
    get_name = dict(zip(encoding.sources, names, strict=True))
    specs = {
        get_name[source]: tf.TensorSpec((None,), tf.float32 if kind == NUMERIC else tf.string, name=get_name[source])
        for source, kind in encoding.sources.items()
    }
    for column in encoding.numeric:
        if column.offset:
            specs[get_name[column.source]] = tf.TensorSpec((None,), tf.float64, name=get_name[column.source])
    tables = {
        get_name[column.name]: _lookup_table(column.categories, NUM_SPECIAL_CODES, OTHER_CODE)
        for column in encoding.categorical
        if column.categories
    }

    def encode(**columns: tf.Tensor) -> dict[str, tf.Tensor]:
        numbers = [_numbers(column, columns[get_name[column.source]]) for column in encoding.numeric]
        codes = [
            _codes(columns[get_name[one.name]], one, tables.get(get_name[one.name])) for one in encoding.categorical
        ]
        parts = {"numbers": numbers, "categories": codes}
        return {name: tf.stack(values, axis=1) for name, values in parts.items() if values}

    return encode, specs, list(tables.values())


def _numbers(column: NumericColumn, values: tf.Tensor) -> tf.Tensor:
    """Returns numbers less their offset, and the requested part of dates; an invalid date is an error."""
    date = column.date
    if date is None:
        return tf.cast(values - column.offset, tf.float32) if column.offset else values
    pattern, groups = PATTERNS[date.order]
    plain = _stripped(values)
    is_date, is_missing = (tf.strings.regex_full_match(plain, one) for one in (pattern, _MISSING_DATE))
    numbers = [_group(plain, is_date, pattern, group) for group in (*groups, HOUR_GROUP, MINUTE_GROUP)]
    is_date &= is_valid(*numbers)
    message = f"The column {date.column} holds dates with year, month and day in the order {date.order}."
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(is_date | is_missing), [message, values])]):
        parts = get_parts(numbers, sine=tf.sin, cosine=tf.cos, as_float=lambda one: tf.cast(one, tf.float32))
        return tf.where(is_date, tf.cast(parts[date.part], tf.float32), math.nan)


def _group(texts: tf.Tensor, is_date: tf.Tensor, pattern: str, group: int) -> tf.Tensor:
    """A group of digits in each text, as int64; 0 if it is empty or the text is not a date."""
    found = tf.strings.regex_replace(texts, f"^{pattern}$", rf"\{group}")
    return tf.strings.to_number(tf.where(is_date & (found != ""), found, "0"), tf.int64)


def _stripped(texts: tf.Tensor) -> tf.Tensor:
    """Texts without whitespace around them, as `clean_texts` takes it off; `tf.strings.strip` knows that of ASCII."""
    return tf.strings.regex_replace(texts, f"^{_SPACES}|{_SPACES}$", "")


def _codes(texts: tf.Tensor, column: CategoricalColumn, table: tf.lookup.StaticHashTable | None) -> tf.Tensor:
    plain = _stripped(texts)
    is_missing = tf.strings.regex_full_match(plain, _MISSING_CATEGORY)
    if column.num_buckets is not None:
        buckets = tf.strings.to_hash_bucket_strong(plain, column.num_buckets, key=HASH_KEY)
        codes = buckets + tf.constant(NUM_SPECIAL_CODES, tf.int64)
    else:
        known = tf.fill(tf.shape(plain), tf.constant(OTHER_CODE, tf.int64))  # if all categories are rare
        codes = known if table is None else table.lookup(plain)
        is_missing &= codes == OTHER_CODE
    return tf.cast(tf.where(is_missing, tf.constant(MISSING_CODE, tf.int64), codes), tf.int32)
