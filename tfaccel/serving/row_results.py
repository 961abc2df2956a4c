"""A model's outputs in the form in which `:classify` and `:regress` answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfaccel.data.raw_input import RawInput
from tfaccel.reporting.class_scores import softmax
from tfaccel.serving.request_error import RequestError


def classes_of_rows(outputs: dict[str, np.ndarray], known: RawInput | None) -> list[list[list[Any]]]:
    """Pairs of a class's name and its score for each row: what `:classify` answers.

    Arguments:
        outputs: of the model, by name.
        known: what is known of its classes; without names, each is "".

    Raises:
        RequestError: 400, if the outputs are no scores of classes.
    """
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


def one_value_a_row(outputs: dict[str, np.ndarray]) -> list[float]:
    """The one number that a model gives for each row: what `:regress` answers.

    Raises:
        RequestError: 400, if it gives something else.

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
