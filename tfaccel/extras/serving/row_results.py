"""Converts a model's outputs to the answers of `:classify` and `:regress`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfaccel.data.raw_input import RawInput
from tfaccel.extras.serving.request_error import RequestError
from tfaccel.reporting.class_scores import softmax


def classes_of_rows(outputs: dict[str, np.ndarray], known: RawInput | None) -> list[list[list[Any]]]:
    """Pairs of a class's name and its score for each row: what `:classify` answers.

    Args:
        outputs: the model's outputs, by name.
        known: gives class names; without it, each is "".

    Raises:
        RequestError: 400, if the outputs are not class scores.
    """
    if set(outputs) <= {"classes", "scores"}:
        return _pairs_of_rows(outputs)
    names = known.class_names if known is not None else ()
    scores = outputs.get("probabilities", next(iter(outputs.values())))
    is_other = (known is not None and known.outputs == "values") or (
        len(outputs) > 1 and "probabilities" not in outputs
    )
    if is_other or scores.ndim != 2 or scores.dtype.kind != "f" or (names and scores.shape[1] != len(names)):
        raise RequestError(400, f"The model does not classify: its output has the shape {scores.shape}. Use :predict.")
    if known is not None and known.outputs == "logits" and "probabilities" not in outputs:
        scores = softmax(scores)
    names = names or ("",) * scores.shape[1]
    return [[[name, score] for name, score in zip(names, row, strict=True)] for row in scores.tolist()]


def _pairs_of_rows(outputs: dict[str, np.ndarray]) -> list[list[list[Any]]]:
    """As in TensorFlow Serving: missing labels are "", missing scores 0."""
    arrays = list(outputs.values())
    if any(array.ndim != 2 or array.shape != arrays[0].shape for array in arrays):
        shapes = ", ".join(f"{name} {value.shape}" for name, value in outputs.items())
        raise RequestError(400, f"The model does not classify: it gives {shapes}. Use :predict.")
    labels = outputs.get("classes", np.full(arrays[0].shape, b"", dtype=object)).tolist()
    scores = outputs.get("scores", np.zeros(arrays[0].shape)).tolist()
    return [
        [[_text(label), score] for label, score in zip(*row, strict=True)] for row in zip(labels, scores, strict=True)
    ]


def _text(label: Any) -> str:
    return label.decode(errors="replace") if isinstance(label, bytes) else str(label)


def one_value_a_row(outputs: dict[str, np.ndarray]) -> list[float]:
    """The number that a model predicts for each row: the answer of `:regress`.

    Raises:
        RequestError: 400, if it predicts anything else.

    Example:
        >>> one_value_a_row({"price": np.array([[2.5], [3.0]])})
        [2.5, 3.0]
    """
    values = next(iter(outputs.values()))
    is_number = values.dtype.kind in "fiu" and values.ndim in (1, 2) and values.shape[1:] in ((), (1,))
    if len(outputs) != 1 or not is_number:
        shapes = ", ".join(f"{name} {value.shape}" for name, value in outputs.items())
        raise RequestError(400, f"The model does not give one number for each row, but {shapes}. Use :predict.")
    found: list[float] = values.reshape(-1).tolist()
    return found
