"""How far the outputs of a variant are from the model's."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np


def relative_error(expected: Any, found: Any) -> float:
    """Root mean square of the differences, relative to the spread of the expected values.

    Args:
        expected, found: nests of arrays of the same shapes.

    Example:
        >>> relative_error({"y": np.array([1.0, -1.0])}, {"y": np.array([1.1, -1.1])})
        0.1
    """
    a, b = (
        np.concatenate([np.ravel(np.asarray(one, np.float64)) for one in keras.tree.flatten(nest)])
        for nest in (expected, found)
    )
    return round(float(np.sqrt(np.mean((a - b) ** 2))) / (float(np.std(a)) or 1.0), 12)
