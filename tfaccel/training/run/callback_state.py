"""The state of callbacks, as a checkpoint keeps it: numbers, strings, flags, and lists of arrays; and the history."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

logger = logging.getLogger("tfaccel")

Arrays = dict[str, np.ndarray]


def callback_states(callbacks: Sequence[keras.callbacks.Callback]) -> tuple[list[dict[str, Any]], Arrays]:
    """The states of callbacks, and the arrays in them by names that begin with "callback/"."""
    states, arrays = [], {}
    for index, callback in enumerate(callbacks):
        state, more = callback_state(callback, f"callback/{index}")
        states.append(state)
        arrays.update(more)
    return states, arrays


def restore_callbacks(
    callbacks: Sequence[keras.callbacks.Callback], states: Sequence[dict[str, Any]], arrays: Arrays
) -> None:
    """Restores what `callback_states` returned: the n-th callback of each class gets the state of the n-th there.

    Callbacks without a saved state begin anew, and states without a callback are ignored; both are logged.
    """
    left = {index: str(state.get("class")) for index, state in enumerate(states)}
    for callback in callbacks:
        name = type(callback).__name__
        index = next((index for index, kind in left.items() if kind == name), None)
        if index is None:
            logger.warning("The callback %s is not in the checkpoint, so it begins anew.", name)
            continue
        del left[index]
        restore_callback(callback, states[index], arrays, f"callback/{index}")
    if left:
        logger.warning(
            "The checkpoint has the state of callbacks that are not there now: %s.", ", ".join(left.values())
        )


def callback_state(callback: keras.callbacks.Callback, prefix: str) -> tuple[dict[str, Any], Arrays]:
    """The state of a callback: its numbers, strings and flags, and its lists of arrays (the best weights).

    Strings that the callback was made with, such as paths, are settings and no state.
    """
    state: dict[str, Any] = {"class": type(callback).__name__}
    arrays: Arrays = {}
    settings = inspect.signature(type(callback).__init__).parameters
    for name, value in vars(callback).items():
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, bool | int) or (isinstance(value, str) and name not in settings):
            state[name] = value
        elif isinstance(value, float):
            state[name] = _float(value)
        elif isinstance(value, list) and value and all(isinstance(v, np.ndarray) for v in value):
            arrays.update({f"{prefix}/{name}/{i}": v for i, v in enumerate(value)})
    if isinstance(callback, keras.callbacks.History):
        rows = {name: [_float(float(value)) for value in values] for name, values in callback.history.items()}
        state["history"] = {"epoch": getattr(callback, "epoch", []), "rows": rows}
    return state, arrays


def restore_callback(callback: keras.callbacks.Callback, state: dict[str, Any], arrays: Arrays, prefix: str) -> None:
    """Restores a callback's state from `callback_state`, unless it was saved from another class."""
    if state.get("class") != type(callback).__name__:
        return
    for name, value in state.items():
        if name == "history" and isinstance(callback, keras.callbacks.History):
            callback.epoch = list(value["epoch"])
            callback.history = {key: [float(one["float"]) for one in row] for key, row in value["rows"].items()}
        elif name != "class":
            setattr(callback, name, float(value["float"]) if isinstance(value, dict) else value)
    if getattr(callback, "monitor_op", callback) is None:  # Keras may flip its sign on first seeing the metric
        callback.min_delta = abs(callback.min_delta)
    lists: dict[str, list[np.ndarray]] = {}
    for key in arrays:  # in the order in which they were saved
        if key.startswith(f"{prefix}/"):
            lists.setdefault(key.split("/")[2], []).append(arrays[key])
    for name, values in lists.items():
        setattr(callback, name, values)


def _float(value: float) -> dict[str, str]:
    return {"float": repr(value)}  # JSON has no infinity
