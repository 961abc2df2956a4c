"""Trains a user's model on each type of data with tfaccel and with `Model.fit`; a test starts this program.

Prints JSON: name -> a pair of histories that must be equal, and name -> the message of an expected error. Arguments:
the folder of the runs, and the pairs to run; all by default.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import tensorflow as tf

import tfaccel
from tfaccel.errors import TfaccelError

RUNS = Path(sys.argv[1])
PLAN = tfaccel.Plan(strategy="none", devices=("CPU:0",), global_batch_size=16)
NUM_EPOCHS = 3
rng = np.random.default_rng(0)
X = rng.normal(size=(100, 8))
Y = (X.sum(axis=1) > 0).astype("int32")


class Rows(keras.utils.PyDataset):
    """Data whose batches change from epoch to epoch."""

    epochs_ended = 0

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Any:
        rows = slice(16 * index, 16 * index + 16)
        return X[rows] + self.epochs_ended, Y[rows]

    def on_epoch_end(self) -> None:
        self.epochs_ended += 1


class Stop(keras.callbacks.Callback):
    """Interrupts the run as Ctrl-C does."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 2:
            raise KeyboardInterrupt


def dataset(**options: Any) -> tf.data.Dataset:
    rows = tf.data.Dataset.from_tensor_slices((X.astype("float32"), Y))
    return rows.shuffle(100, **options).batch(16)


class Unbuilt(keras.Model):
    """Creates its weights when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def unbuilt() -> keras.Model:
    model = Unbuilt()
    model.compile("sgd", "mse")
    return model


def build_model() -> keras.Model:
    layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.3), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def make_workload(*, width: int) -> tfaccel.Workload:
    return tfaccel.Workload.of(build_model, X, Y, batch_size=width, shuffle=False)


def own(name: str, *data: Any, model: Any = build_model, **options: Any) -> dict[str, Any]:
    options = {"plan": PLAN, "epochs": NUM_EPOCHS, **options}
    return tfaccel.train(model, *data, run_dir=RUNS / name, verbose=0, **options).history


def plain(*data: Any, **options: Any) -> dict[str, Any]:
    keras.utils.set_random_seed(0)
    return build_model().fit(*data, epochs=NUM_EPOCHS, verbose=0, **options).history


def stopped_and_resumed(name: str, make: Any, **options: Any) -> dict[str, Any]:
    try:
        own(name, *make(), callbacks=[Stop()], checkpoint_interval=5, **options)
    except KeyboardInterrupt:
        return own(name, *make(), resume="auto", checkpoint_interval=5, **options)
    raise AssertionError("the run was not stopped")


def refused(name: str, *data: Any, **options: Any) -> list[str]:
    try:
        own(name, *data, **options)
    except TfaccelError as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


def pairs() -> dict[str, Callable[[], list[Any]]]:
    in_order = {"batch_size": 16, "shuffle": False}
    weights = rng.uniform(size=100)
    frame, series = pd.DataFrame(X), pd.Series(Y)
    whole = {"checkpoint_interval": 5}
    keras.utils.set_random_seed(0)
    given = build_model()
    return {
        "arrays": lambda: [
            own("arrays", X, Y, validation_split=0.2, **in_order),
            plain(X, Y, validation_split=0.2, **in_order),
        ],
        "a function that makes a workload": lambda: [
            tfaccel.train(
                make_workload, width=16, run_dir=RUNS / "made", plan=PLAN, epochs=NUM_EPOCHS, verbose=0
            ).history,
            plain(X, Y, **in_order),
        ],
        "a model": lambda: [own("a_model", X, Y, model=given, **in_order), plain(X, Y, **in_order)],
        "sample weights": lambda: [
            own("samples", X, Y, sample_weight=weights, **in_order),
            plain(X, Y, sample_weight=weights, **in_order),
        ],
        "class weights": lambda: [
            own("classes", X, Y, class_weight={0: 1.0, 1: 3.0}, **in_order),
            plain(X, Y, class_weight={0: 1.0, 1: 3.0}, **in_order),
        ],
        "data frame": lambda: [own("frame", frame, series, **in_order), plain(frame, series, **in_order)],
        "data set": lambda: [own("set", dataset(seed=3)), plain(dataset(seed=3), shuffle=False)],
        "PyDataset": lambda: [own("py", Rows(), shuffle=False), plain(Rows(), shuffle=False)],
        "arrays, resumed": lambda: [
            own("arrays_whole", X, Y, batch_size=16, **whole),
            stopped_and_resumed("arrays_again", lambda: (X, Y), batch_size=16),
        ],
        "data set, resumed": lambda: [
            own("set_whole", dataset(seed=3), **whole),
            stopped_and_resumed("set_again", lambda: (dataset(seed=3),)),
        ],
        "PyDataset, resumed": lambda: [
            own("py_whole", Rows(workers=2), **whole),
            stopped_and_resumed("py_again", lambda: (Rows(workers=2),)),
        ],
    }


def refusals() -> dict[str, list[str]]:
    keras.utils.set_random_seed(0)
    used = dataset(seed=5)
    tf.random.set_seed(None)
    unseeded, unseeded_again = dataset(), dataset()
    own("used", used, epochs=1)
    own("unseeded", unseeded, epochs=1)
    (RUNS / "unseeded" / "result.json").unlink()
    return {
        "other rows": refused("arrays", X + 1, Y, validation_split=0.2, batch_size=16, shuffle=False, resume="auto"),
        "no seed": refused("unseeded", unseeded_again, epochs=1, resume="auto"),
        "used before": refused("used_again", used),
        "never ends": refused("never", dataset(seed=1).repeat()),
        "other batches": refused("batches", dataset(seed=1), batch_size=32, plan=None),
        "batches of the plan": refused("of_plan", dataset(seed=1), plan=dataclasses.replace(PLAN, global_batch_size=8)),
        "batch size and plan": refused("size", X, Y, batch_size=8),
        "data set and y": refused("y", dataset(seed=1), Y),
        "split of a data set": refused("split", dataset(seed=1), validation_split=0.2),
        "workload and data": refused("both", X, Y, model=tfaccel.Workload.of(build_model, X, Y)),
        "no data": refused("none"),
        "no workload": refused("number", model=3),
        "no such recipe": refused("recipe", model="image_clasification"),
        "no such option": refused("option", model=make_workload, widht=3),
        "not compiled": refused("raw", X, Y, model=lambda: keras.Sequential([keras.Input((8,))])),
        "plan": refused("no_plan", X, Y, plan="mirrored"),
        "not built": refused("unbuilt", X, Y, model=unbuilt()),
        "policy": refused(
            "policy", X, Y, model=build_model(), plan=dataclasses.replace(PLAN, dtype_policy="mixed_bfloat16")
        ),
    }


found = {name: pair() for name, pair in pairs().items() if name in sys.argv[2:] or not sys.argv[2:]}
print(json.dumps([found, refusals()]))
