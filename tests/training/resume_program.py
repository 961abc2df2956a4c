"""A script that trains with `tfaccel.fit` and `tfaccel.Resume`, and can be interrupted at any moment and started again.

As a program, it is that script. `main` starts it several times in one process, with a new model and new data.
"""

import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfaccel

NUM_ROWS, BATCH, NUM_EPOCHS = 44, 8, 6


class Interruption(BaseException):
    """In place of a signal that ends the process."""


class Interrupt(keras.callbacks.Callback):
    """Interrupts training at "epoch.batch", or the first graph call after it, at "epoch.test" or at "epoch.end"."""

    tfaccel_windows = True

    def __init__(self, where: str, *, kills: bool) -> None:
        super().__init__()
        self._when = (where, kills)  # checkpoints keep texts and numbers, but no tuples
        self._epoch = 0

    def _at(self, where: str) -> None:
        if f"{self._epoch}.{where}" == self._when[0]:
            if self._when[1]:
                os.kill(os.getpid(), signal.SIGKILL)
            raise Interruption

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        epoch, _, wanted = self._when[0].partition(".")
        if wanted.isdecimal() and int(epoch) == self._epoch and batch >= int(wanted):
            self._at(wanted)

    def on_test_begin(self, logs: Any = None) -> None:
        self._at("test")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._at("end")


class BatchNumbers(keras.callbacks.Callback):
    """Sees every batch: its numbers are those of the epoch, also where training continues."""

    total = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.total = self.total * 7 % 1000003 + batch


class Batches(keras.utils.PyDataset):
    """Batches in an order that Keras shuffles with Python's `random`."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        x, y = rows()
        return x[index * BATCH :][:BATCH], y[index * BATCH :][:BATCH]


class HalfBatches(Batches):
    """Other batches in each epoch."""

    first = 0

    def on_epoch_end(self) -> None:
        self.first = (self.first + 3) % 4

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x[self.first :], y[self.first :]


def rows() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(NUM_ROWS, 4)).astype("float32")
    return x, (x @ generator.normal(size=(4, 1)) + 0.3).astype("float32")


def random_batches() -> Any:
    """A generator with a seed of its own."""
    x, y = rows()
    generator = np.random.default_rng(5)
    while True:
        chosen = generator.integers(0, NUM_ROWS, BATCH)
        yield x[chosen], y[chosen]


def dataset() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(rows())


def big_buffer() -> tf.data.Dataset:
    """A pipeline whose buffer is too large for a checkpoint."""
    numbers = dataset().map(lambda x, y: (x, y, tf.zeros([1 << 18]))).shuffle(NUM_ROWS, seed=3)
    return numbers.map(lambda x, y, _: (x, y)).batch(BATCH)


def data(kind: str) -> dict[str, Any]:
    """The arguments of `fit` for each kind of data."""
    x, y = rows()
    made: dict[str, Any] = {
        "arrays": lambda: {"x": x, "y": y, "batch_size": BATCH},
        "unseeded": lambda: {"x": x, "y": y, "batch_size": BATCH},
        "executions": lambda: {"x": x, "y": y, "batch_size": BATCH},
        "mirrored": lambda: {"x": x, "y": y, "batch_size": BATCH},
        "part": lambda: {"x": x, "y": y, "batch_size": BATCH, "steps_per_epoch": 3},
        "shuffled": lambda: {"x": dataset().shuffle(NUM_ROWS, seed=3).batch(BATCH), "shuffle": False},
        "alike": lambda: {"x": dataset().batch(BATCH).prefetch(1), "shuffle": False},
        "repeated": lambda: {
            "x": dataset().shuffle(NUM_ROWS, seed=3).repeat().batch(BATCH),
            "shuffle": False,
            "steps_per_epoch": 5,
        },
        "replayed": lambda: {"x": big_buffer(), "shuffle": False},
        "batches": lambda: {"x": Batches()},
        "workers": lambda: {"x": Batches(workers=2)},
        "hooks": lambda: {"x": HalfBatches(), "shuffle": False},
        "generator": lambda: {"x": random_batches(), "shuffle": False, "steps_per_epoch": 5},
    }
    return dict(made[kind]())


MODES = {"hooks": "replay", "generator": "replay"}


def make_model(kind: str) -> keras.Model:
    layers = [
        keras.layers.Dense(6, kernel_initializer=keras.initializers.GlorotUniform(seed=1)),
        keras.layers.BatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.Dropout(0.3, seed=2),
        keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=3)),
    ]
    model = keras.Sequential([keras.Input((4,)), *layers])
    optimizer = keras.optimizers.Adam(0.05, use_ema=True, gradient_accumulation_steps=2)
    model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=2 if kind == "executions" else 1)
    return model


def trained(directory: Path, kind: str, where: str = "", *, kills: bool = False, **options: Any) -> list[Any]:
    """What the script ends with."""
    if kind != "unseeded":
        keras.utils.set_random_seed(7)
    strategy = (
        tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]) if kind == "mirrored" else tf.distribute.get_strategy()
    )
    with strategy.scope():
        model = make_model(kind)
    numbers = BatchNumbers()
    files = [directory.with_name(f"{directory.name}_{name}.csv") for name in ("new", "appended")]
    callbacks = [
        keras.callbacks.CSVLogger(str(files[0])),
        keras.callbacks.EarlyStopping("val_loss", min_delta=0.1, patience=2, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.5),
        keras.callbacks.CSVLogger(str(files[1]), separator=";", append=True),
        *([numbers] if kind == "arrays" else []),
        Interrupt(where, kills=kills),
        tfaccel.Resume(directory, **{"save_freq": 2, "data": MODES.get(kind, "exact"), **options}),
    ]
    history = tfaccel.fit(
        model, **data(kind), epochs=NUM_EPOCHS, validation_data=rows(), callbacks=callbacks, verbose=0
    )
    digest = hashlib.sha256()
    for variable in (*model.variables, *model.optimizer.variables):
        digest.update(np.asarray(variable).tobytes())
    get_rows = {name: [repr(float(one)) for one in values] for name, values in history.history.items()}
    return [digest.hexdigest(), history.epoch, get_rows, numbers.total, *(file.read_text() for file in files)]


def interrupted(directory: Path, kind: str, *places: str, **options: Any) -> list[Any]:
    """What the script ends with after interruptions at the given places."""
    for where in places:
        try:
            trained(directory, kind, where, **options)
        except Interruption:
            continue
        raise SystemExit(f"{kind} was not interrupted at {where}")
    return trained(directory, kind, **options)


def main(*kinds: str, places: tuple[str, ...]) -> None:
    """Prints a line for each kind of data: what an undisturbed run, an interrupted one, and a repeated one end with."""
    if tf.config.list_physical_devices("CPU"):
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
        )
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            whole, other = Path(folder, kind), Path(folder, f"{kind} interrupted")
            if kind == "unseeded":  # both have the order that is drawn when training begins
                try:
                    trained(other, kind, "0.0")
                except Interruption:
                    shutil.copytree(other, whole)
            expected = trained(whole, kind)
            outcomes = [expected, interrupted(other, kind, *places), trained(whole, kind)]
            sys.stdout.write(json.dumps([kind, *outcomes]) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    ended = trained(Path(sys.argv[1]), sys.argv[2], *sys.argv[3:4], kills=True)
    sys.stdout.write(json.dumps(ended) + "\n")
