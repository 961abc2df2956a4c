"""From the columns of a table to a model's tensors, inside TensorFlow's graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfaccel.data.table_encoding import MISSING_CODE, NUM_SPECIAL_CODES, OTHER_CODE, CategoricalColumn, TableEncoding

_MISSING = r"|na|n/a|nan|null|none|\?"  # texts that stand for a missing value in files, too


def table_preprocessing(
    encoding: TableEncoding, names: Sequence[str]
) -> tuple[Callable[..., dict[str, tf.Tensor]], dict[str, tf.TensorSpec], list[Any]]:
    """What makes a model's inputs of a table's columns: the function, what it takes, and the tables that it uses.

    The function takes a tensor of shape (rows,) for each column, by name: float32 for numbers, NaN where one is
    missing; a text for categories, "" where one is missing. It makes of them what `TableEncoding.encode` makes.

    Arguments:
        encoding: the columns.
        names: what they are called in a signature: the numeric ones first, in the encoding's order.
    """
    of_column = dict(zip(names, (*encoding.numeric, *encoding.categorical), strict=True))
    kinds = {name: tf.string if isinstance(column, CategoricalColumn) else tf.float32
             for name, column in of_column.items()}  # fmt: skip
    specs = {name: tf.TensorSpec((None,), kind, name=name) for name, kind in kinds.items()}
    tables = {name: _table(column) for name, column in of_column.items() if isinstance(column, CategoricalColumn)}

    def encode(**columns: tf.Tensor) -> dict[str, tf.Tensor]:
        numbers = [columns[name] for name in names if name not in tables]
        codes = [_codes(columns[name], table) for name, table in tables.items()]
        parts = {"numbers": numbers, "categories": codes}
        return {name: tf.stack(values, axis=1) for name, values in parts.items() if values}

    return encode, specs, list(tables.values())


def _table(column: CategoricalColumn) -> tf.lookup.StaticHashTable:
    with tf.device("/CPU:0"):
        keys = tf.constant(list(column.categories), tf.string)
        codes = tf.range(NUM_SPECIAL_CODES, column.num_codes, dtype=tf.int64)
        return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, codes), OTHER_CODE)


def _codes(texts: tf.Tensor, table: tf.lookup.StaticHashTable) -> tf.Tensor:
    plain = tf.strings.strip(texts)
    codes = table.lookup(plain)
    is_missing = tf.strings.regex_full_match(tf.strings.lower(plain), _MISSING)
    return tf.cast(tf.where((codes == OTHER_CODE) & is_missing, tf.constant(MISSING_CODE, tf.int64), codes), tf.int32)
