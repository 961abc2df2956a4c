"""Input rows of a model, to compare its files on and for warm-up: of a sample, of the run's own data, or random."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.raw_input import ImageInput, RawInput, TableInput, TextInput
from tfaccel.data.tables.encoding import NUM_SPECIAL_CODES, OTHER_CODE, CategoricalColumn
from tfaccel.data.tables.table import Column, Table
from tfaccel.data.texts.vocabulary import NUM_SPECIAL_TOKENS
from tfaccel.errors import ExportError, in_one_line
from tfaccel.exporting.preprocessing import IMAGE_NAME, TEXT_NAME
from tfaccel.exporting.signatures import Signatures, check_batch, column_names
from tfaccel.planning.load_workload import workload_of_run
from tfaccel.training.private.private_api import all_layers
from tfaccel.training.run.run_dir import first_inputs, read_example_inputs

logger = logging.getLogger("tfaccel")

NUM_ROWS = 4
_UNKNOWN_LENGTH = 8  # length used for variable axes
_MAX_PIXEL = 255


def sample_rows(
    inputs: Mapping[str, Any], model: keras.Model, raw_input: RawInput | None = None, *, num_rows: int = NUM_ROWS
) -> dict[str, np.ndarray]:
    """Random rows, the same in every call.

    Args:
        inputs: name -> shape and dtype.
        model: the model; its smallest embedding limits token ids.
        raw_input: images get integer pixel values.
        num_rows: number of rows.
    """
    rng = np.random.default_rng(0)
    highest = smallest_embedding(model) or 2
    rows = {}
    for name, spec in sorted(inputs.items()):
        shape = (num_rows, *(_UNKNOWN_LENGTH if size is None else size for size in spec.shape[1:]))
        dtype = np.dtype(spec.dtype.as_numpy_dtype)
        if dtype.kind == "b":
            rows[name] = rng.integers(0, 2, shape).astype(dtype)
        elif dtype.kind in "iu":
            rows[name] = rng.integers(0, min(highest, np.iinfo(dtype).max), shape).astype(dtype)
        elif isinstance(raw_input, ImageInput):
            rows[name] = rng.integers(0, _MAX_PIXEL + 1, shape).astype(dtype)
        elif dtype.kind == "f" or spec.dtype.is_floating:
            rows[name] = rng.standard_normal(shape).astype(dtype)
        else:
            raise ExportError(
                f"The input {name!r} of the model holds {spec.dtype.name}. Give a batch: export(..., sample=x)."
            )
    return rows


def smallest_embedding(model: keras.Model) -> int | None:
    """How many tokens the smallest embedding of a model has; None without embeddings."""
    sizes = [layer.input_dim for layer in all_layers(model) if isinstance(layer, keras.layers.Embedding)]
    return min(sizes, default=None)


def raw_rows(raw_input: RawInput | None, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Raw inputs that match a model's rows: the pixels as PNG files, texts of the tokens, or columns of a table.

    Returns:
        Arrays by their names in `serving_raw`; empty if raw inputs are unknown.
    """
    values = next(iter(rows.values()))
    if isinstance(raw_input, ImageInput):
        return {IMAGE_NAME: np.array([_png(pixels) for pixels in values], dtype=object)}
    if isinstance(raw_input, TextInput):
        return {TEXT_NAME: np.array([_text(numbers, raw_input).encode() for numbers in values], dtype=object)}
    if isinstance(raw_input, TableInput):
        return _columns(raw_input, rows)
    return {}


def rows_of_raw(
    raw_input: RawInput | None, raw: Mapping[str, np.ndarray], rows: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Preprocesses raw rows in Python: the model must give the same outputs for these tensors as for the raw rows."""
    if isinstance(raw_input, TableInput):
        of_name = dict(zip(column_names(raw_input), raw_input.encoding.sources, strict=True))
        columns = [Column(of_name[name], _as_in_file(values)) for name, values in raw.items()]
        return raw_input.encoding.encode(Table("sample", tuple(columns)))
    if not isinstance(raw_input, TextInput):
        return rows
    numbers = [raw_input.vocabulary.encode(text.decode()) for text in raw[TEXT_NAME]]
    array = np.zeros((len(numbers), raw_input.num_tokens), np.int32)
    for row, found in zip(array, numbers, strict=True):
        row[: len(found)] = found[: raw_input.num_tokens]
    return {next(iter(rows)): array}


def _columns(raw_input: TableInput, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns by their names in `serving_raw`; all numbers of the last row are missing."""
    encoding = raw_input.encoding
    found: dict[str, np.ndarray] = {}
    for place, column in enumerate(encoding.numeric):
        if column.date is not None:
            found[column.source] = _dates(column.date.order, len(rows["numbers"]))
            continue
        numbers = rows["numbers"][:, place].copy()
        if column.offset:
            numbers = numbers.astype(np.float64) + column.offset
        numbers[NUM_ROWS - 1 :] = np.nan
        found[column.name] = numbers
    for place, kind in enumerate(encoding.categorical):
        texts = [_category(kind, code) for code in rows["categories"][:, place]]
        found[kind.name] = np.array([text.encode() for text in texts], dtype=object)
    own_names = raw_input.encoding.sources
    return {name: found[own] for name, own in zip(column_names(raw_input), own_names, strict=True)}


def _category(column: CategoricalColumn, code: int) -> str:
    if code < NUM_SPECIAL_CODES:
        return " another " if code == OTHER_CODE else ""
    number = code - NUM_SPECIAL_CODES
    return column.categories[number] if column.num_buckets is None else f"id {number}"


def _dates(order: str, num_rows: int) -> np.ndarray:
    """Dates in the format of a column, the last one missing."""
    days = [datetime(2024, 2, 29, 13, 5) + timedelta(days=100 * row) for row in range(num_rows)]
    forms = {"ymd": "%Y-%m-%d %H:%M", "dmy": "%d.%m.%Y", "mdy": "%m/%d/%Y"}
    texts = [day.strftime(forms[order]).encode() for day in days]
    return np.array([*texts[: NUM_ROWS - 1], *[b""] * len(texts[NUM_ROWS - 1 :])], dtype=object)


def _as_in_file(values: np.ndarray) -> np.ndarray:
    """A column as in a table read from a file: numbers, or texts with None for missing ones."""
    if values.dtype != object:
        return values.astype(np.float64)
    texts = np.empty(len(values), dtype=object)
    texts[:] = [value.decode().strip() or None for value in values]
    return texts


def _png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    content = io.BytesIO()
    plain = pixels.astype(np.uint8)
    Image.fromarray(plain[..., 0] if plain.shape[-1] == 1 else plain).save(content, "PNG")
    return content.getvalue()


def _text(numbers: np.ndarray, raw_input: TextInput) -> str:
    tokens = raw_input.vocabulary.tokens
    known = [
        tokens[number - NUM_SPECIAL_TOKENS]
        for number in numbers.tolist()
        if NUM_SPECIAL_TOKENS <= number < len(raw_input.vocabulary)
    ]
    return (" " if raw_input.vocabulary.unit == "words" else "").join([*known, "It's", "3,5", "\u00c4rger\u2026"])


def get_compared_rows(
    signatures: Signatures, model: keras.Model, raw_input: RawInput | None, *, sample: Any = None, own_rows: Any = None
) -> dict[str, np.ndarray]:
    """The rows to compare a model's files on: of a sample, of the run's own data if the model takes them, or random.

    Raises:
        ExportError: if the sample is no batch of the model's inputs.
    """
    if sample is not None:
        return _get_rows(signatures, sample)
    specs, leaves = [signatures.inputs[name] for name in signatures.input_names], keras.tree.flatten(own_rows)
    if own_rows is None or len(leaves) != len(specs) or not all(map(_takes, specs, leaves)):
        return sample_rows(signatures.inputs, model, raw_input)
    rows = _get_rows(signatures, own_rows)
    is_image = isinstance(raw_input, ImageInput)
    return {name: np.clip(np.round(array), 0, 255) for name, array in rows.items()} if is_image else rows


def _get_rows(signatures: Signatures, batch: Any) -> dict[str, np.ndarray]:
    inputs, names, leaves = signatures.inputs, signatures.input_names, keras.tree.flatten(batch)
    if len(leaves) != len(names):
        raise ExportError(
            f"The model has {len(names)} inputs ({', '.join(names)}). Received: a sample with {len(leaves)}."
        )
    check_batch(leaves)
    rows = {name: np.asarray(leaf)[:NUM_ROWS] for name, leaf in zip(names, leaves, strict=True)}
    return {
        name: _encoded(array) if inputs[name].dtype == tf.string else array.astype(inputs[name].dtype.as_numpy_dtype)
        for name, array in rows.items()
    }


def _takes(spec: tf.TensorSpec, leaf: Any) -> bool:
    """Whether an input takes an array of at least four rows."""
    array = np.asarray(leaf)
    kinds = "OSU" if spec.dtype == tf.string else "biuf"
    return len(array) >= NUM_ROWS and array.dtype.kind in kinds and spec.shape[1:].is_compatible_with(array.shape[1:])


def _encoded(texts: np.ndarray) -> np.ndarray:
    """Texts as byte strings in UTF-8."""
    parts = [text.encode() if isinstance(text, str) else bytes(text) for text in texts.ravel().tolist()]
    return np.array([*parts, None], object)[:-1].reshape(texts.shape)


def rows_of_run(run_or_model: Any) -> list[np.ndarray] | None:
    """The model's inputs, flattened, for the first rows of the data of a run; None if they cannot be had.

    Args:
        run_or_model: the run directory; anything else has no data.
    """
    if not isinstance(run_or_model, str | os.PathLike) or not os.path.isdir(run_or_model):
        return None
    try:
        kept = read_example_inputs(Path(run_or_model))
        return first_inputs(workload_of_run(run_or_model), NUM_ROWS, num_rows=NUM_ROWS) if kept is None else kept
    except Exception as error:  # the data may be gone, and a user's function may raise anything
        reason = in_one_line(error, 200)
        logger.info("The data of the run cannot be read again, so files are compared on random numbers: %s", reason)
        return None
