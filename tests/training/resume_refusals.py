"""Calls of `fit` with `Resume` that are refused, or stopped; prints the messages."""

import json
import os
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from resume_program import BATCH, Batches, HalfBatches, data, dataset, random_batches, rows

import tfaccel


class RandomBatches(Batches):
    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + np.random.default_rng().normal(), y


def copied(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Runs Python code."""
    return tf.ensure_shape(tf.numpy_function(np.copy, [x], tf.float32), x.shape), y


class Terminate(keras.callbacks.Callback):
    tfaccel_windows = True

    def on_train_begin(self, logs: Any = None) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def model_of(units: int = 3) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def message(call: Any) -> str:
    try:
        call()
    except (Exception, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def fitted(directory: Path, units: int = 3, callbacks: Any = (), **given: Any) -> Any:
    x, y = rows()
    resume = tfaccel.Resume(directory, data=given.pop("mode", "exact"))
    arguments = {"x": x, "y": y, "batch_size": BATCH, "epochs": 1, "verbose": 0, **given}
    if "y" not in given and not isinstance(arguments["x"], np.ndarray):
        del arguments["y"], arguments["batch_size"]
    return tfaccel.fit(model_of(units), callbacks=[resume, *callbacks], **arguments)


def of_data(folder: Path) -> dict[str, str]:
    """The message for each kind of data that cannot be resumed exactly, and for some that can be with a choice."""
    noise = dataset().map(lambda x, y: (x + tf.random.normal([4]), y)).batch(BATCH)
    python = dataset().batch(BATCH).map(copied)
    kinds = {
        "unseeded": {"x": dataset().shuffle(44).batch(BATCH)},
        "random": {"x": noise},
        "python": {"x": python},
        "generator": {"x": random_batches(), "steps_per_epoch": 2},
        "hooks": {"x": HalfBatches()},
        "random batches": {"x": RandomBatches()},
        "python replayed": {"x": python, "mode": "replay"},
        "random restarted": {"x": noise, "mode": "restart"},
    }
    return {name: message(partial(fitted, folder / name, shuffle=False, **given)) for name, given in kinds.items()}


def of_directories(folder: Path) -> dict[str, str]:
    """The messages for a directory that holds something else, and for callbacks that do not fit."""
    x, y = rows()
    whole = folder / "whole"
    first = fitted(whole)
    (folder / "other").mkdir()
    (folder / "other" / "file").write_text("something")
    newest = sorted((whole / "checkpoints").iterdir())[-1]
    found = {
        "model": message(lambda: fitted(whole, units=5)),
        "batch size": message(lambda: fitted(whole, batch_size=4)),
        "data": message(lambda: fitted(whole, x=x + 1)),
        "kind": message(lambda: fitted(whole, x=data("alike")["x"], shuffle=False)),
        "other files": message(lambda: fitted(folder / "other")),
        "again": str(fitted(whole).history == first.history),
        "Model.fit": message(lambda: model_of().fit(x, y, verbose=0, callbacks=[tfaccel.Resume(folder / "new")])),
        "two": message(lambda: fitted(folder / "new", callbacks=[tfaccel.Resume(folder / "second")])),
        "backup": message(lambda: fitted(folder / "new", callbacks=[keras.callbacks.BackupAndRestore(folder / "b")])),
        "SIGTERM": message(lambda: fitted(folder / "stopped", callbacks=[Terminate()])),
        "continued": message(lambda: fitted(folder / "stopped")),
        "in use": message(lambda: fitted(folder / "used", callbacks=[Inner(folder / "used")])),
    }
    (newest / "arrays.npz").write_bytes(b"")
    found["broken"] = str(fitted(whole).history == first.history)
    return found


class Inner(keras.callbacks.Callback):
    """Trains in the same directory meanwhile."""

    tfaccel_windows = True

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def on_train_begin(self, logs: Any = None) -> None:
        fitted(self._directory)


def main() -> None:
    """Prints the messages."""
    with tempfile.TemporaryDirectory() as folder:
        found = {**of_data(Path(folder)), **of_directories(Path(folder))}
        text = json.dumps(found).replace(folder, "FOLDER")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    x, y = rows()
    where = tfaccel.Resume(sys.argv[1], save_freq=1)
    tfaccel.fit(model_of(), x, y, batch_size=BATCH, epochs=10**6, verbose=0, callbacks=[where])
