"""Trains by `Model.fit` and by `tfaccel.fit` with many combinations of arguments, and writes where they differ.

Every pair of values of two axes occurs in a case. Histories, logs of callbacks, weights, evaluations and predictions
must be equal to the last bit. Argument of the program: N, to run every Nth case only.
"""

import json
import sys
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfaccel
from tfaccel.parity.covering import covering_cases

ROWS = np.random.default_rng(0)
X = ROWS.normal(size=(26, 3)).astype("float32")
Y = (X @ ROWS.normal(size=(3, 3))).argmax(axis=1)
WEIGHTS = np.linspace(0.25, 2.0, len(X)).astype("float32")
ROWS_OF_BATCH = 4
AXES = {
    "data": ("arrays", "dataset", "shuffled", "repeated", "unknown", "generator", "py_dataset", "workers"),
    "steps_per_epoch": (None, 3, 9),
    "shuffle": (True, False, "batch"),
    "steps_per_execution": (1, 2, 5),
    "batch_size": (None, 4, 13),
    "epochs": ((0, 2), (1, 4)),
    "validation": (None, "split", "arrays", "shuffled", "steps", "py_dataset"),
    "validation_freq": (1, 2, "listed"),
    "weights": (None, "sample_weight", "class_weight"),
    "callback": (None, "recorder", "stops_in_batch", "stops_in_epoch", "stops_evaluation"),
    "run_eagerly": (False, True),
}
OF_ARRAYS = {
    ("batch_size", 4),
    ("batch_size", 13),
    ("shuffle", "batch"),
    ("validation", "split"),
    ("weights", "sample_weight"),
}
ENDLESS = {("data", "repeated")}


def excluded(one: tuple[str, Any], other: tuple[str, Any]) -> bool:
    """Whether two arguments cannot be given together, or give what the clock decides.

    Keras shuffles the batches of several workers in a thread, with numbers from the generator that the main thread uses
    too: on a busy machine, 40 runs of Keras itself gave three different models.
    """
    for first, second in ((one, other), (other, one)):
        if first[0] == "data" and first[1] != "arrays" and second in OF_ARRAYS:
            return True
        if first == ("data", "generator") and second == ("weights", "class_weight"):
            return True
        if first in ENDLESS and second == ("steps_per_epoch", None):
            return True
        if first == ("data", "workers") and second == ("shuffle", True):
            return True
        if first == ("validation", None) and second[0] == "validation_freq" and second[1] != 1:
            return True
    return False


class Batches(keras.utils.PyDataset):
    """Batches by Python code, which notes what it is asked for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[Any] = []

    def __len__(self) -> int:
        return len(X) // ROWS_OF_BATCH

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(index * ROWS_OF_BATCH, (index + 1) * ROWS_OF_BATCH)
        return X[rows], Y[rows]

    def on_epoch_begin(self) -> None:
        self.calls.append("begin")

    def on_epoch_end(self) -> None:
        self.calls.append("end")


class Recorder(keras.callbacks.Callback):
    """Keeps every call of a hook with its index and logs, and may stop what runs."""

    def __init__(self, stops: str | None) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self._stops = stops

    def _note(self, name: str, index: Any, logs: Any) -> None:
        self.calls.append([name, index, {k: float(v) for k, v in (logs or {}).items()}])

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._note("train_batch_begin", batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._note("train_batch_end", batch, logs)
        if self._stops == "stops_in_batch" and len(self.calls) > 8:
            self.model.stop_training = True

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._note("test_batch_end", batch, logs)
        if self._stops == "stops_evaluation":
            self.model.stop_evaluating = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._note("epoch_begin", epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._note("epoch_end", epoch, logs)
        if self._stops == "stops_in_epoch" and epoch >= 1:
            self.model.stop_training = True


def data_of(kind: str) -> Any:
    """Training or validation data of a kind."""
    dataset = tf.data.Dataset.from_tensor_slices((X, Y))
    if kind == "generator":
        return ((X[i : i + 4], Y[i : i + 4]) for _ in range(5) for i in range(0, 24, 4))
    if kind in ("py_dataset", "workers"):
        return Batches(workers=2 if kind == "workers" else 1)
    if kind == "shuffled":
        return dataset.shuffle(len(X), seed=3).batch(ROWS_OF_BATCH).prefetch(1)
    if kind == "unknown":
        return dataset.shuffle(len(X)).batch(ROWS_OF_BATCH).filter(lambda x, y: tf.reduce_sum(x) > -1.0)
    return dataset.batch(5).repeat() if kind == "repeated" else dataset.batch(ROWS_OF_BATCH, drop_remainder=True)


def arguments_of(case: dict[str, Any]) -> tuple[dict[str, Any], list[Batches]]:
    """The arguments of `fit`, and those among them that note what they are asked for."""
    first, epochs = case["epochs"]
    found: dict[str, Any] = {
        "epochs": epochs,
        "initial_epoch": first,
        "steps_per_epoch": case["steps_per_epoch"],
        "batch_size": case["batch_size"],
    }
    found["validation_freq"] = [1, 3] if case["validation_freq"] == "listed" else case["validation_freq"]
    if case["data"] == "arrays":
        found.update(x=X, y=Y, shuffle=case["shuffle"])
    else:
        found.update(x=data_of(case["data"]), shuffle=case["shuffle"])
    if case["weights"] == "sample_weight":
        found["sample_weight"] = WEIGHTS
    elif case["weights"] == "class_weight":
        found["class_weight"] = {0: 1.0, 1: 3.0, 2: 0.25}
    if case["validation"] == "split":
        found["validation_split"] = 0.3
    elif case["validation"] in ("arrays", "steps"):
        found["validation_data"] = (X[:10], Y[:10], WEIGHTS[:10])
        found.update({"validation_steps": 2, "validation_batch_size": 3} if case["validation"] == "steps" else {})
    elif case["validation"]:
        found["validation_data"] = data_of(case["validation"])
    noting = [one for one in (found["x"], found.get("validation_data")) if isinstance(one, Batches)]
    return found, noting


def compiled(steps_per_execution: int, run_eagerly: bool) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(3, "softmax")])
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
        run_eagerly=run_eagerly,
    )
    model.optimizer.build(model.trainable_variables)
    return model


MODELS: dict[tuple[bool, int, bool], tuple[keras.Model, list[np.ndarray]]] = {}


def outcome(case: dict[str, Any], *, by_tfaccel: bool) -> Any:
    """What training, evaluation and prediction give; a model is compiled once for many cases."""
    keras.utils.set_random_seed(7)
    key = (by_tfaccel, case["steps_per_execution"], case["run_eagerly"])
    if key not in MODELS:
        model = compiled(*key[1:])
        MODELS[key] = model, [v.numpy() for v in [*model.weights, *model.optimizer.variables]]
    model, values = MODELS[key]
    for variable, value in zip([*model.weights, *model.optimizer.variables], values, strict=True):
        variable.assign(value)
    side = tfaccel if by_tfaccel else keras.Model
    arguments, noting = arguments_of(case)
    recorder = Recorder(case["callback"])
    callbacks = [recorder] if case["callback"] else None
    try:
        exact = {"exact_kernels": True} if by_tfaccel else {}
        history = side.fit(model, verbose=0, callbacks=callbacks, **exact, **arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    size = case["batch_size"]
    found = {
        "history": history.history,
        "epochs": history.epoch,
        "weights": [value.tolist() for value in model.get_weights()],
        "updates": int(model.optimizer.iterations),
        "data": [one.calls for one in noting],
        "evaluate": side.evaluate(model, X, Y, size, verbose=0, steps=case["steps_per_epoch"], return_dict=True),
        "predict": side.predict(model, X, batch_size=size, verbose=0).tolist(),
    }
    if case["data"] in ("unknown", "generator"):  # Keras calls this hook once more, where it finds no batch
        found["calls"] = [call for call in recorder.calls if call[0] != "train_batch_begin"]
    else:
        found["calls"] = recorder.calls
    return found


def main(every: int) -> None:
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # which takes longer than the steps
    warnings.simplefilter("ignore")  # of data that ran out
    cases = covering_cases(AXES, excluded)
    for number, case in enumerate(cases):
        if number % every:
            continue
        expected, received = (outcome(case, by_tfaccel=by_tfaccel) for by_tfaccel in (False, True))
        if isinstance(expected, dict) and isinstance(received, dict):
            differing = [name for name in expected if expected[name] != received[name]]
        else:
            differing = [] if expected == received else [f"Keras: {expected!s:.300}; tfaccel: {received!s:.300}"]
        print(json.dumps([case, differing, isinstance(expected, dict)]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
