"""The state of a callback, as a checkpoint keeps it: numbers, strings, flags, and lists of arrays."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np


def callback_state(callback: keras.callbacks.Callback, prefix: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The state of a callback: its numbers, strings and flags, and its lists of arrays (the best weights)."""
    state: dict[str, Any] = {"class": type(callback).__name__}
    arrays: dict[str, np.ndarray] = {}
    for name, value in vars(callback).items():
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, bool | int | str):
            state[name] = value
        elif isinstance(value, float):
            state[name] = {"float": repr(value)}  # JSON has no infinity
        elif isinstance(value, list) and value and all(isinstance(v, np.ndarray) for v in value):
            arrays.update({f"{prefix}/{name}/{i}": v for i, v in enumerate(value)})
    return state, arrays


def restore_callback(
    callback: keras.callbacks.Callback, state: dict[str, Any], arrays: dict[str, np.ndarray], prefix: str
) -> None:
    """Restores a callback's state from `callback_state`, unless it was saved from another class."""
    if state.get("class") != type(callback).__name__:
        return
    for name, value in state.items():
        if name != "class":
            setattr(callback, name, float(value["float"]) if isinstance(value, dict) else value)
    if getattr(callback, "monitor_op", callback) is None:  # Keras may flip its sign on first seeing the metric
        callback.min_delta = abs(callback.min_delta)
    lists: dict[str, list[np.ndarray]] = {}
    for key in arrays:  # in the order in which they were saved
        if key.startswith(f"{prefix}/"):
            lists.setdefault(key.split("/")[2], []).append(arrays[key])
    for name, values in lists.items():
        setattr(callback, name, values)
