"""`predict_files`: writes a model's predictions on files and folders to a CSV or JSON lines file."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.data.images.image_check import IMAGE_SUFFIXES, check_image
from tfaccel.data.raw_input import ImageInput, RawInput
from tfaccel.data.texts.files import read_text
from tfaccel.errors import DataError
from tfaccel.exporting.file_rows import Rows
from tfaccel.exporting.predictor import Predictor
from tfaccel.exporting.saved_model_session import graph_error_reason
from tfaccel.files import finite, whole_file

SUFFIXES = (".csv", ".jsonl")
ROWS_AT_ONCE = 64

Named = tuple[list[str], dict[str, np.ndarray]]  # names of rows, and their outputs


@dataclass(frozen=True)
class PredictedFiles:
    """The result of `predict_files`.

    Args:
        num_rows: number of rows in the output.
        unreadable: name -> reason, for inputs that could not be predicted.
        counts: class -> number of rows predicted as it; empty without classes.
    """

    num_rows: int
    unreadable: Mapping[str, str]
    counts: Mapping[str, int]


def check_output(output: Path) -> None:
    """Raises DataError for an output file that cannot be written, before predicting."""
    if output.suffix.lower() not in SUFFIXES:
        raise DataError(f"The output must end in .csv or .jsonl. Received: {output}.")
    if output.is_dir() or not output.parent.is_dir():
        raise DataError(f"Cannot write {output}: name a file in a folder that exists.")


def predict_files(
    predictor: Predictor,
    rows: Rows,
    output: Path,
    *,
    rows_at_once: int = ROWS_AT_ONCE,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PredictedFiles:
    """Predicts rows in batches, and writes one line per row; the file is written atomically.

    A line has `input` (the file, or the row's index) and, if the classes are known, `class`, `probability` and the
    probability of each class; otherwise the model's outputs.

    Args:
        predictor: the model.
        rows: the rows to predict.
        output: a `.csv` or `.jsonl` file.
        rows_at_once: batch size, in rows.
        progress: called with the number of finished rows and of all rows.
    """
    check_output(output)
    unreadable = dict(rows.unreadable)
    counts: dict[str, int] = {}
    num_rows = 0
    with whole_file(output) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        write = _csv_writer(file) if output.suffix.lower() == ".csv" else _json_writer(file)
        for piece in rows.pieces(rows_at_once):
            names, outputs = _predicted(predictor, rows, piece, unreadable)
            for place, name in enumerate(names):
                line = _line(name, {key: value[place] for key, value in outputs.items()}, predictor)
                if "class" in line and not math.isfinite(line["probability"]):
                    unreadable[name] = f"the model's probability for it is {line['probability']}"
                    continue
                if "class" in line:
                    counts[line["class"]] = counts.get(line["class"], 0) + 1
                write(line)
                num_rows += 1
            progress(piece.stop, len(rows))
        if not num_rows:
            name, reason = next(iter(unreadable.items()))
            raise DataError(f"Nothing could be predicted. First: {name}: {reason}")
    return PredictedFiles(num_rows, unreadable, dict(sorted(counts.items())))


def _predicted(predictor: Predictor, rows: Rows, piece: slice, unreadable: dict[str, str]) -> Named:
    """Names and outputs of the readable rows of a slice."""
    names = list(rows.names[piece])
    if rows.arrays is not None:
        return names, _of_arrays(predictor, {name: array[piece] for name, array in rows.arrays.items()}, names)
    contents: dict[str, bytes] = {}
    if rows.texts:
        contents = {name: text.encode() for name, text in zip(names, rows.texts[piece], strict=True)}
    for name, file in zip(names, rows.files[piece], strict=False):
        try:
            if file.suffix.lower() in IMAGE_SUFFIXES:
                content = file.read_bytes()
                check_image(content, str(file))  # TensorFlow decodes some that it does not know wrongly
                contents[name] = content
            else:
                contents[name] = read_text(file, encoding=rows.encoding, advice="").encode()
        except (OSError, DataError) as error:
            unreadable[name] = str(error)
    if rows.texts:
        unreadable |= {name: "it holds no text" for name, content in contents.items() if not content.strip()}
        contents = {name: content for name, content in contents.items() if content.strip()}
    return _of_contents(predictor, contents, unreadable)


def _of_arrays(predictor: Predictor, arrays: Mapping[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    """The outputs for rows of arrays; an error names the first row that the model rejects."""
    try:
        return predictor.tensors(arrays)
    except tf.errors.OpError as error:
        for place, name in enumerate(names if len(names) > 1 else ()):
            _of_arrays(predictor, {key: array[place : place + 1] for key, array in arrays.items()}, [name])
        raise DataError(f"The model failed on row {names[0]}: {graph_error_reason(error)}") from error


def _of_contents(predictor: Predictor, contents: Mapping[str, bytes], unreadable: dict[str, str]) -> Named:
    """The outputs for contents; those that cannot be read, which are found one by one, are left out."""
    try:
        return list(contents), predictor.raw(list(contents.values())) if contents else {}
    except tf.errors.InvalidArgumentError as error:
        if len(contents) == 1:
            ((name, content),) = contents.items()
            unreadable[name] = _reason(content, name, error, predictor.raw_input)
            return [], {}
    found = [_of_contents(predictor, {name: content}, unreadable) for name, content in contents.items()]
    read = [outputs for names, outputs in found if names]
    outputs = {key: np.concatenate([one[key] for one in read]) for key in (read[0] if read else ())}
    return [name for names, _ in found for name in names], outputs


def _reason(content: bytes, name: str, error: Any, raw_input: RawInput | None) -> str:
    """Why an input cannot be read; Pillow's messages about images are clearer than TensorFlow's."""
    try:
        header = check_image(content, name)
    except DataError as clear:
        return str(clear)
    if isinstance(raw_input, ImageInput) and raw_input.num_channels == 1 and not header.is_grey:
        return "the model takes gray images, and TensorFlow does not convert this one. Save it as a gray PNG image"
    return graph_error_reason(error)


def _line(name: str, outputs: Mapping[str, np.ndarray], predictor: Predictor) -> dict[str, Any]:
    if set(outputs) == {"label", "probabilities"} and predictor.raw_input is not None:
        probabilities = [float(value) for value in outputs["probabilities"]]
        by_class = dict(zip(predictor.raw_input.class_names, probabilities, strict=True))
        return {
            "input": name,
            "class": _text(outputs["label"]),
            "probability": max(probabilities),
            "probabilities": by_class,
        }
    return {"input": name, **{key: np.asarray(value) for key, value in outputs.items()}}


def _json_writer(file: Any) -> Callable[[dict[str, Any]], None]:
    def write(line: dict[str, Any]) -> None:
        plain = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in line.items()}
        file.write(json.dumps(finite(plain), ensure_ascii=False, default=_text) + "\n")

    return write


def _csv_writer(file: Any) -> Callable[[dict[str, Any]], None]:
    writer = csv.writer(file)
    is_first = True

    def write(line: dict[str, Any]) -> None:
        nonlocal is_first
        flat = _flat(line)
        if is_first:
            writer.writerow(flat)
            is_first = False
        writer.writerow([f"{value:.6g}" if type(value) is float else value for value in flat.values()])

    return write


def _flat(line: Mapping[str, Any]) -> dict[str, Any]:
    """Flattens a line to one column per number (`logits_0`, `logits_1` ...) or per class."""
    flat: dict[str, Any] = {}
    for key, value in line.items():
        if isinstance(value, dict):
            flat |= {f"p({name})": part for name, part in value.items()}
        elif isinstance(value, np.ndarray):
            parts = [_text(part) if isinstance(part, bytes) else _shortest(part) for part in value.ravel()]
            flat |= {key if value.ndim == 0 else f"{key}_{place}": part for place, part in enumerate(parts)}
        else:
            flat[key] = value
    return flat


def _shortest(number: Any) -> str:
    """The shortest text that is read as this number of its dtype.

    Example:
        >>> [_shortest(np.float32(number)) for number in (0.1, 16777215, 15)]
        ['0.1', '1.6777215e+07', '15']
    """
    return str(number).removesuffix(".0")


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
