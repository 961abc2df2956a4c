"""Trains on data with examples that spoil the loss or the gradients; prints what became of it, as JSON.

Row 0 of a batch of 8 belongs to the first of two replicas, row 7 to the second one.
"""

import contextlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from train_workload import plan

from tfaccel import Workload, fit, train
from tfaccel.errors import NonFiniteLossError

NUM_ROWS = 56
SPOILED = (13, 15, 30, 55)  # all but the third in the rows of the second replica; the last batch of an epoch as well
WITHOUT = [row for row in range(NUM_ROWS) if row // 8 not in {row // 8 for row in SPOILED}]


def arrays(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Features and targets: "good", "bad" (rows are NaN or infinite), or "less" (without the batches of these rows)."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(NUM_ROWS, 4)).astype("float32")
    y = (x @ generator.normal(size=(4, 1)) + 0.3).astype("float32")
    if kind == "bad":
        x[SPOILED[0], 2] = np.nan
        y[SPOILED[1]] = np.nan
        x[SPOILED[2:], :] = np.inf
    return (x[WITHOUT], y[WITHOUT]) if kind == "less" else (x, y)


def with_division(y: Any, predicted: Any) -> Any:
    """A loss that is infinite where a target is -100."""
    return keras.ops.square(y - predicted) / (y + 100.0)


def with_root(y: Any, predicted: Any) -> Any:
    """A loss that is 0 where a target is -100, with a gradient that is NaN."""
    return keras.ops.sqrt(keras.ops.square(y - predicted) * keras.ops.cast(y > -100.0, "float32"))


def build_model(*, dropout: float = 0.3) -> Any:
    layers = keras.layers
    hidden = [layers.Dense(6, name="hidden"), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(dropout)]
    return keras.Sequential([keras.Input((4,)), *hidden, layers.Dense(1, dtype="float32", name="last")])


def workload(x: Any, y: Any, *, loss: Any = "mse", dropout: float = 0.3, scaled: bool = False) -> Workload:
    def optimizer() -> Any:
        made = keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.9)
        return keras.optimizers.LossScaleOptimizer(made, initial_scale=2.0**40) if scaled else made

    return Workload.of(
        lambda: build_model(dropout=dropout),
        x,
        y,
        shuffle=False,
        batch_size=8,
        optimizer=optimizer,
        loss=loss,
        metrics=["mae"],
        name="spoiled",
    )


class Failure(keras.callbacks.Callback):
    """Ends a run in its second epoch, as if the machine had failed."""

    def __init__(self, *, fails: bool = True) -> None:
        super().__init__()
        self._fails = (fails,)  # a checkpoint holds flags, but no tuples
        self._epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self._fails[0] and (self._epoch, batch) == (1, 4):
            raise RuntimeError("the machine failed")


class Runs:
    """Trains in folders of their own."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def run(self, name: str, made: Workload, placement: str = "none", fields: Any = None, **options: Any) -> dict:
        """The weights, metrics and result of a run."""
        where = self._folder / name
        used = plan(placement, **{"num_logical_cpus": 1 + (placement != "workers_2"), **(fields or {})})
        result = train(made, used, run_dir=where, verbose=0, **{"epochs": 2, **options})
        rows = [json.loads(line) for line in (where / "metrics.jsonl").read_text().splitlines()]
        weights = keras.models.load_model(where / "model.keras", compile=False).get_weights()
        return {
            "weights": weights,
            "history": result.history,
            "left_out": [row.get("left_out") for row in rows],
            "total": result.left_out_batches,
        }

    def error(self, name: str, made: Workload, placement: str = "none", **options: Any) -> dict[str, Any]:
        """The error of a run that fails, and its files."""
        where = self._folder / name
        try:
            self.run(name, made, placement, **options)
        except NonFiniteLossError as error:
            kept = sorted(path.name for path in (where / "checkpoints").glob("*"))
            files = {"kept": kept, "model": (where / "model.keras").exists()}
            return {"text": str(error), "place": [error.epoch, error.step], "examples": error.examples, **files}
        return {"text": "no error"}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two runs have the same weights and metrics, to the last bit."""
    weights = zip(one["weights"], other["weights"], strict=True)
    return all(np.array_equal(a, b) for a, b in weights) and one["history"] == other["history"]


def skipped(runs: Runs, placement: str, label: str = "", **options: Any) -> list[Any]:
    """Whether skipping gives what training without the batches gives, to the last bit, and what was left out."""
    kind = {"scaled": options.pop("scaled", False)}
    found = [
        runs.run(
            f"{placement}{label}-{name}", workload(*arrays(name), **kind), placement, on_nonfinite="skip", **options
        )
        for name in ("bad", "less")
    ]
    return [same(*found), found[0]["left_out"], found[0]["total"], found[1]["left_out"]]


def one_device(runs: Runs) -> Any:
    return skipped(runs, "none")


def two_replicas(runs: Runs) -> Any:
    """As one device, apart from rounding; the rows that are not finite are on one of the replicas."""
    found = [
        runs.run(f"alike-{place}", workload(*arrays("bad"), dropout=0.0), place, on_nonfinite="skip")
        for place in ("none", "mirrored_2")
    ]
    losses = [np.array(list(one["history"].values())) for one in found]
    return [*skipped(runs, "mirrored_2"), float(np.abs(losses[0] - losses[1]).max())]


def combinations(runs: Runs) -> Any:
    """XLA, accumulation, several steps per call, and all of them."""
    accumulated = {"accumulation_steps": 2, "global_batch_size": 16}  # micro-batches of 8 rows
    alone: list[dict[str, Any]] = [{"jit_compile": True}, accumulated, {"steps_per_execution": 3}]
    chosen = [*alone, {name: value for fields in alone for name, value in fields.items()}]
    return [
        skipped(runs, place, str(number), fields={**fields, "synchronize_batch_norm": False})[0]
        for place in ("none", "mirrored_2")
        for number, fields in enumerate(chosen)
    ]


def loss_scale(runs: Runs) -> Any:
    """Gradients that overflow at first are no faults; examples that are not finite are."""
    fields = {"dtype_policy": "mixed_float16"}
    good = runs.run("scaled", workload(*arrays("good"), scaled=True), on_nonfinite="skip", fields=fields)
    return [good["left_out"], *skipped(runs, "none", "-scaled", scaled=True, fields=fields)]


def rollback(runs: Runs) -> Any:
    """As without the batches, also if the run failed and was resumed; and what is too much."""
    options: dict[str, Any] = {"on_nonfinite": "rollback", "checkpoint_interval": 3}
    bad = workload(*arrays("bad"))
    found = runs.run("rolled-back", bad, **options)
    with contextlib.suppress(RuntimeError):
        runs.run("resumed", bad, callbacks=[Failure()], **options)
    resumed = runs.run("resumed", bad, callbacks=[Failure(fails=False)], resume="auto", **options)
    whole = runs.run("whole", workload(*arrays("less")))
    endless = runs.error(
        "endless", workload(np.full((96, 4), np.nan, "float32"), np.zeros((96, 1), "float32")), **options
    )
    return [same(found, whole), same(found, resumed), found["left_out"], resumed["left_out"], endless]


def errors(runs: Runs) -> Any:
    """What stops a run."""
    found = {"input": runs.error("input", workload(*arrays("bad")), checkpoint_interval=1)}
    for name, row, loss in (("loss", 29, with_division), ("gradient", 29, with_root), ("last", 55, with_root)):
        x, y = arrays("good")
        y[row] = -100.0
        found[name] = runs.error(name, workload(x, y, loss=loss), checkpoint_interval=2)
    x, y = arrays("good")
    found["all"] = runs.error("all", workload(x * np.nan, y), on_nonfinite="skip")
    long = np.full((96, 4), np.nan, "float32")
    found["in a row"] = runs.error("in-a-row", workload(long, np.zeros((96, 1), "float32")), on_nonfinite="skip")
    return found


def fitted(runs: Runs) -> Any:
    """`fit` is Keras's by default, stops, or skips."""
    found = []
    for kind, on_nonfinite in (("bad", None), ("bad", "stop"), ("bad", "skip"), ("less", "skip"), ("less", None)):
        keras.utils.set_random_seed(0)
        model = build_model()
        model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
        x, y = arrays(kind)
        try:
            history = fit(model, x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, on_nonfinite=on_nonfinite)
            found.append([history.history, [weight.tolist() for weight in model.get_weights()]])
        except NonFiniteLossError as error:
            found.append(str(error))
    return [np.isnan(found[0][0]["loss"][0]), found[1], found[2] == found[3], found[3] == found[4]]


def own_step(runs: Runs) -> Any:
    """A model with a `train_step` of its own, whose batches are left out as well; on one device and on two replicas."""
    strategies = [tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])]
    found = []
    for strategy, kind in itertools.product(strategies, ("bad", "less")):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = OwnStep(keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)]))
            model.compile(keras.optimizers.Adam(0.05))
        x, y = arrays(kind)
        history = fit(model, x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, on_nonfinite="skip")
        found.append([history.history, [weight.tolist() for weight in model.get_weights()]])
    return [found[0] == found[1], found[2] == found[3], bool(np.isfinite(found[3][0]["squares"]).all())]


class OwnStep(keras.Model):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x, training=False):
        return self.inner(x, training=training)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"squares": loss}


def main(folder: str, *cases: str) -> None:
    """Prints what the cases return."""
    runs = Runs(folder)
    sys.stdout.write(json.dumps({case: globals()[case](runs) for case in cases}, default=bool) + "\n")


def worker(folder: str, kind: str, on_nonfinite: str) -> None:
    """Trains on one of two workers; prints what all of them must print."""
    runs = Runs(folder)
    options: dict[str, Any] = {"on_nonfinite": on_nonfinite}
    options |= {"checkpoint_interval": 3} if on_nonfinite == "rollback" else {}
    options |= {"epochs": 1} if on_nonfinite != "skip" else {}
    if (kind, on_nonfinite) == ("bad", "stop"):
        found = runs.error(kind, workload(*arrays(kind)), "workers_2", **options)
    else:
        found = runs.run(kind, workload(*arrays(kind)), "workers_2", **options)
        found["weights"] = [weight.tolist() for weight in found["weights"]]
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
