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


def make_model(units: int = 3, *others: keras.layers.Layer, **compiled: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units), *others, keras.layers.Dense(1)])
    model.compile("sgd", "mse", **compiled)
    return model


class Noise(keras.layers.Layer):
    """Adds what a function of the layer and a shape returns."""

    def __init__(self, draw: Any, **attributes: Any) -> None:
        super().__init__(name="noise")
        self.draw = draw
        for name, value in attributes.items():
            setattr(self, name, value)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + tf.ensure_shape(self.draw(self, tf.shape(x)), x.shape)


def message(call: Any) -> str:
    try:
        call()
    except (Exception, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def fitted(
    directory: Path, units: int = 3, callbacks: Any = (), *, layers: Any = (), state: str = "exact", **given: Any
) -> Any:
    x, y = rows()
    resume = tfaccel.Resume(directory, data=given.pop("mode", "exact"), state=state)
    arguments = {"x": x, "y": y, "batch_size": BATCH, "epochs": 1, "verbose": 0, **given}
    if "y" not in given and not isinstance(arguments["x"], np.ndarray):
        del arguments["y"], arguments["batch_size"]
    return tfaccel.fit(make_model(units, *layers), callbacks=[resume, *callbacks], **arguments)


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


def of_states(folder: Path) -> dict[str, str]:
    """The message for each kind of state that a step keeps outside of a checkpoint, and for some that are saved."""
    generator, loose = tf.random.Generator.from_seed(1), keras.random.SeedGenerator(1)
    count, scale = tf.Variable(1.0, name="count"), tf.Variable(2.0)
    numbers = iter(tf.data.Dataset.from_tensors(1.0).repeat())
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

    def from_python(_: Any, shape: tf.Tensor) -> tf.Tensor:
        return tf.numpy_function(lambda size: np.random.normal(size=size).astype("f"), [shape], tf.float32)

    def counted(_: Any, shape: tf.Tensor) -> tf.Tensor:
        return tf.fill(shape, count.assign_add(1.0))

    def filled(_: Any, shape: tf.Tensor) -> tf.Tensor:
        table.insert([0], [1.0])
        return tf.fill(shape, table.lookup([0])[0])

    draws = {
        "tf.random": lambda _, shape: tf.random.normal(shape, seed=1),
        "in a branch": lambda _, shape: tf.cond(
            shape[0] > 1, lambda: tf.random.uniform(shape), lambda: tf.zeros(shape)
        ),
        "generator": lambda _, shape: generator.uniform(shape),
        "loose seed": lambda _, shape: keras.random.uniform(shape, seed=loose),
        "numpy": from_python,
        "variable": counted,
        "iterator": lambda _, shape: tf.fill(shape, next(numbers)),
        "table": filled,
    }
    found = {f"state: {name}": message(partial(fitted, folder / name, layers=[Noise(draws[name])])) for name in draws}
    kept = sorted(path.name for path in (folder / "tf.random").rglob("*"))
    found["state: kept"] = f"{kept} {message(partial(fitted, folder / 'tf.random', units=5))}"
    layers = [Noise(draws["tf.random"]), Noise(from_python), Noise(counted)]
    saved = [
        Noise(lambda layer, shape: keras.random.uniform(shape, seed=layer.seeds), seeds=keras.random.SeedGenerator(1)),
        Noise(lambda _, shape: keras.random.gamma(shape, 2.0) * scale),
        Noise(lambda _, shape: tf.random.stateless_uniform(shape, [1, 2])),
    ]
    restarted, used = partial(fitted, folder / "restarted", layers=layers[:1], state="restart"), folder / "used before"
    return {
        **found,
        "state: restarted": message(restarted),
        "state: saved": message(lambda: [fitted(folder / f"saved {i}", layers=[one]) for i, one in enumerate(saved)]),
        "state: traced before": message(lambda: twice(used, make_model(3, layers[0]))),
    }


def twice(folder: Path, model: keras.Model) -> None:
    """Trains first without a `Resume`, and then with one, in the same graphs."""
    for callbacks in ([], [tfaccel.Resume(folder)]):
        tfaccel.fit(model, *rows(), batch_size=BATCH, verbose=0, callbacks=callbacks)


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
        "Model.fit": message(lambda: make_model().fit(x, y, verbose=0, callbacks=[tfaccel.Resume(folder / "new")])),
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
        found = {**of_data(Path(folder)), **of_states(Path(folder)), **of_directories(Path(folder))}
        text = json.dumps(found).replace(folder, "FOLDER")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    x, y = rows()
    where = tfaccel.Resume(sys.argv[1], save_freq=1)
    tfaccel.fit(make_model(), x, y, batch_size=BATCH, epochs=10**6, verbose=0, callbacks=[where])
