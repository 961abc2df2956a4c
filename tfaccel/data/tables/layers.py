"""The first layers of a model for tables, which impute and scale raw numbers, and embed or separate categories."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import layers, ops

from tfaccel.data.tables.encoding import TableEncoding

_SMALLEST_SCALE, _LARGEST_SCALE = 1e-6, 1e18
_MAX_EXPONENT = 120  # float32 holds 2**120 and 2**-120, and numbers that are divided by them

_MAX_EMBEDDING_WIDTH = 16


def table_inputs(encoding: TableEncoding) -> tuple[dict[str, Any], Any]:
    """The model's inputs, and the feature tensor, of shape (num_rows, num_features).

    Numbers are centered on the median and divided by the standard deviation of the training rows. Missing values become
    the median, and a column that has them gets a second feature that indicates where. All of this is float32, under
    mixed precision too: raw numbers may need more than 16 bits. From those that need more than 32,
    `TableEncoding.encode` has subtracted an offset. Only built-in layers and operations of Keras are used, so that a
    saved model loads anywhere.

    Returns:
        Inputs by name, as returned by `TableEncoding.encode`; and the feature tensor.

    Example:
        >>> from tfaccel.data.tables.encoding import NumericColumn
        >>> encoding = TableEncoding(numeric=(NumericColumn("age", 40.0, 10.0, True),), categorical=(), target="pays")
        >>> inputs, features = table_inputs(encoding)
        >>> keras.Model(inputs, features)({"numbers": ops.array([[50.0], [float("nan")]])}).numpy().tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    inputs, scaled = _inputs(encoding)
    features = []
    if encoding.numeric:
        features.append(scaled)
        gaps = [number for number, column in enumerate(encoding.numeric) if column.has_missing]
        if gaps:
            features.append(ops.cast(ops.isnan(ops.take(inputs["numbers"], gaps, axis=1)), "float32"))
    for number, column in enumerate(encoding.categorical):
        embed = layers.Embedding(column.num_codes, embedding_width(column.num_codes), name=f"embedding_{number}")
        features.append(embed(inputs["categories"][:, number]))
    return inputs, layers.Concatenate(name="features")(features) if len(features) > 1 else features[0]


def column_inputs(encoding: TableEncoding) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model's inputs, and its columns one by one, to be embedded and combined by the model.

    Returns:
        Inputs by name, as returned by `TableEncoding.encode`; and tensors by the names of columns: the codes of
        categories, int32 of shape (num_rows,); and numbers, scaled as by `table_inputs`, float32 of shape (num_rows,
        1), or (num_rows, 2) if values may be missing.

    Example:
        >>> from tfaccel.data.tables.encoding import NumericColumn
        >>> encoding = TableEncoding(numeric=(NumericColumn("age", 40.0, 10.0, True),), categorical=(), target="pays")
        >>> inputs, columns = column_inputs(encoding)
        >>> keras.Model(inputs, columns["age"])({"numbers": ops.array([[50.0], [float("nan")]])}).numpy().tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    inputs, scaled = _inputs(encoding)
    columns: dict[str, Any] = {}
    for number, column in enumerate(encoding.numeric):
        columns[column.name] = scaled[:, number : number + 1]
        if column.has_missing:
            gap = ops.cast(ops.isnan(inputs["numbers"][:, number : number + 1]), "float32")
            columns[column.name] = layers.Concatenate(dtype="float32")([columns[column.name], gap])
    columns |= {kind.name: inputs["categories"][:, number] for number, kind in enumerate(encoding.categorical)}
    return inputs, columns


def _inputs(encoding: TableEncoding) -> tuple[dict[str, Any], Any]:
    """The model's inputs by name, and the scaled numbers; None if there are none."""
    inputs: dict[str, Any] = {}
    if encoding.numeric:
        inputs["numbers"] = keras.Input((len(encoding.numeric),), name="numbers", dtype="float32")
    if encoding.categorical:
        inputs["categories"] = keras.Input((len(encoding.categorical),), name="categories", dtype="int32")
    return inputs, _scaled(encoding, inputs["numbers"]) if encoding.numeric else None


def _scaled(encoding: TableEncoding, numbers: Any) -> Any:
    units = [_unit(column.scale) for column in encoding.numeric]
    if any(unit != 1 for unit in units):
        numbers = layers.Rescaling([1 / unit for unit in units], dtype="float32", name="units")(numbers)
    scale = layers.Normalization(
        mean=[(column.center - column.offset) / unit for column, unit in zip(encoding.numeric, units, strict=True)],
        variance=[(column.scale / unit) ** 2 for column, unit in zip(encoding.numeric, units, strict=True)],
        dtype="float32",
        name="scale",
    )
    return ops.nan_to_num(scale(numbers), nan=0.0)


def _unit(scale: float) -> float:
    """A power of two by which numbers are divided first if float32 cannot hold their variance, else 1.

    `Normalization` divides by 1e-7 at least.
    """
    if _SMALLEST_SCALE <= scale <= _LARGEST_SCALE:
        return 1.0
    return 2.0 ** min(max(round(math.log2(scale)), -_MAX_EXPONENT), _MAX_EXPONENT)


def embedding_width(num_codes: int) -> int:
    """The embedding size of a category: about the square root of the number of codes, at most 16.

    Example:
        >>> embedding_width(4), embedding_width(50), embedding_width(10_000)
        (2, 8, 16)
    """
    return min(_MAX_EMBEDDING_WIDTH, round(num_codes**0.5 + 0.5))
