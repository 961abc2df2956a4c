"""The state of callbacks, as a checkpoint keeps it: numbers, strings, flags, lists of arrays; history and CSV files."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from tfaccel.training.private.private_api import PROFILER_FLAGS

logger = logging.getLogger("tfaccel")

Arrays = dict[str, np.ndarray]

_CSV = "csv"


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
    found = dict(_with_state(callbacks, states))
    for number, callback in enumerate(callbacks):
        if number in found:
            restore_callback(callback, states[found[number]], arrays, f"callback/{found[number]}")
        else:
            name = type(callback).__name__
            logger.warning("The callback %s is not in the checkpoint, so it begins anew.", name)
    left = [str(state.get("class")) for index, state in enumerate(states) if index not in found.values()]
    if left:
        logger.warning("The checkpoint has the state of callbacks that are not there now: %s.", ", ".join(left))


def cut_csv_files(callbacks: Sequence[keras.callbacks.Callback], states: Sequence[dict[str, Any]]) -> None:
    """Makes each `CSVLogger` go on in its file after the rows that it had when the checkpoint was saved.

    Call it before `on_train_begin`, which opens the files, and `restore_callbacks` after it.
    """
    for number, index in _with_state(callbacks, states):
        callback, saved = callbacks[number], states[index].get(_CSV)
        if not isinstance(callback, keras.callbacks.CSVLogger) or not saved:
            continue
        path, callback.append = callback.filename, True
        try:
            lacks = os.path.getsize(path) < saved["bytes"]
            os.truncate(path, min(saved["bytes"], os.path.getsize(path)))
        except OSError:
            lacks = saved["bytes"] > 0
        if lacks:
            logger.warning(
                "%s lacks rows that CSVLogger had written when the checkpoint was saved. It goes on with the rows of "
                "the next epochs; the history of the run has all of them.",
                path,
            )


def _with_state(
    callbacks: Sequence[keras.callbacks.Callback], states: Sequence[dict[str, Any]]
) -> Iterator[tuple[int, int]]:
    """Pairs of the position of a callback, and of the state that is its own."""
    left = {index: str(state.get("class")) for index, state in enumerate(states)}
    for number, callback in enumerate(callbacks):
        index = next((index for index, kind in left.items() if kind == type(callback).__name__), None)
        if index is not None:
            del left[index]
            yield number, index


def callback_state(callback: keras.callbacks.Callback, prefix: str) -> tuple[dict[str, Any], Arrays]:
    """The state of a callback: its numbers, strings and flags, and its lists of arrays (the best weights).

    Strings that the callback was made with, such as paths, are settings and no state.
    """
    state: dict[str, Any] = {"class": type(callback).__name__}
    arrays: Arrays = {}
    settings = inspect.signature(type(callback).__init__).parameters
    for name, value in vars(callback).items():
        if name in PROFILER_FLAGS:
            continue
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
    if isinstance(callback, keras.callbacks.CSVLogger) and callback.csv_file and not callback.csv_file.closed:
        state[_CSV] = {"bytes": callback.csv_file.tell(), "columns": callback.keys}
    return state, arrays


def restore_callback(callback: keras.callbacks.Callback, state: dict[str, Any], arrays: Arrays, prefix: str) -> None:
    """Restores a callback's state from `callback_state`, unless it was saved from another class."""
    if state.get("class") != type(callback).__name__:
        return
    for name, value in state.items():
        if name == "history" and isinstance(callback, keras.callbacks.History):
            callback.epoch = list(value["epoch"])
            callback.history = {key: [float(one["float"]) for one in row] for key, row in value["rows"].items()}
        elif name == _CSV and isinstance(callback, keras.callbacks.CSVLogger):
            callback.keys = value["columns"]
            callback.append_header = callback.csv_file.tell() == 0 if callback.keys else callback.append_header
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
