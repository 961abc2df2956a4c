"""Trains a model with large activations under a memory limit of TensorFlow's CPU allocator."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel import Plan, TfaccelError, Workload, train

BATCH, NUM_ROWS = 1024, 2048
PLANS = {
    "none": {"strategy": "none", "devices": ("CPU:0",), "num_logical_cpus": 2},
    "mirrored_2": {"strategy": "mirrored", "devices": ("CPU:0", "CPU:1"), "num_logical_cpus": 2},
}


def workload(
    *, batch: int = BATCH, num_rows: int = NUM_ROWS, dropout: float = 0.2, normalized: bool = False
) -> Workload:
    def build_model() -> Any:
        import keras

        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(32, activation="relu"),
                *([layers.BatchNormalization(name="norm")] if normalized else []),
                *([layers.Dropout(dropout)] if dropout else []),
                layers.RepeatVector(256),
                layers.Activation("softsign"),
                layers.GlobalAveragePooling1D(),
                layers.Dense(1),
            ]
        )

    def compile_args() -> dict[str, Any]:
        import keras

        schedule = keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.9)
        return {"optimizer": keras.optimizers.Adam(schedule), "loss": "mse", "metrics": ["mae"]}

    def train_data(global_batch_size: int, *, seed: int, epoch: int) -> Any:
        import tensorflow as tf

        x = np.random.default_rng(0).normal(size=(num_rows, 8)).astype("float32")
        x = x[np.random.default_rng([seed, epoch]).permutation(num_rows)]
        return tf.data.Dataset.from_tensor_slices((x, x[:, :1] - x[:, 1:2])).batch(global_batch_size)

    return Workload("wide", build_model, compile_args, train_data, global_batch_size=batch)


def outcome(name: str, work: Workload, plan: Plan, **options: Any) -> dict[str, Any]:
    """Trains in the folder `name`; returns the weights, the metrics and the plan, or the error."""
    import keras
    import tensorflow as tf

    try:
        result = train(work, plan, run_dir=name, epochs=3, seed=3, verbose=0, **options)
    except (TfaccelError, tf.errors.CancelledError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    weights = keras.models.load_model(Path(name) / "model.keras", compile=False).get_weights()
    return {
        "weights": [weight.tolist() for weight in weights],
        "history": result.history,
        "accumulation_steps": result.plan.accumulation_steps,
        "saved_plan": json.loads((Path(name) / "plan.json").read_text()),
    }


def taking_memory(batch_of_second_epoch: int, num_bytes: int) -> Any:
    """A callback that takes memory from a batch of the second epoch on."""
    import keras
    import tensorflow as tf

    class Taking(keras.callbacks.Callback):
        tfaccel_windows = True
        epoch = 0
        taken: Any = None

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if (self.epoch, batch) == (1, batch_of_second_epoch) and self.taken is None:
                self.taken = [tf.zeros([num_bytes // 16 // 4]) for _ in range(16)]

    return Taking()


def cancelling(num_times: int) -> Any:
    """A callback that ends the first batch of the second epoch as TensorFlow may when another replica has failed."""
    import keras
    import tensorflow as tf

    class Cancelling(keras.callbacks.Callback):
        tfaccel_windows = True
        epoch, num_left = 0, num_times

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.epoch == 1 and Cancelling.num_left:
                Cancelling.num_left -= 1
                raise tf.errors.CancelledError(None, None, "Function was cancelled before it was started")

    return Cancelling()


def outcome_of(case: str) -> dict[str, Any]:
    """The outcome of a case: a placement and its accumulation steps, or one of the names below."""
    small = {"batch": BATCH // 2, "num_rows": 2 * BATCH, "dropout": 0.0}
    one = PLANS["none"]
    if case == "normalized":
        return outcome(case, workload(normalized=True), Plan(**one, global_batch_size=BATCH))
    if case in ("never", "late", "within an epoch"):
        callbacks = [] if case == "never" else [taking_memory(0 if case == "late" else 2, 28 << 20)]
        interval = 1 if case == "within an epoch" else None
        plan = Plan(**one, global_batch_size=BATCH // 2)
        return outcome(case, workload(**small), plan, callbacks=callbacks, checkpoint_interval=interval)
    if case.startswith("cancelled "):
        plan = Plan(**PLANS["mirrored_2"], global_batch_size=BATCH // 2)
        return outcome(case, workload(**small), plan, callbacks=[cancelling(int(case.split()[1]))])
    placement, steps = case.split(":")
    return outcome(case, workload(), Plan(**PLANS[placement], global_batch_size=BATCH, accumulation_steps=int(steps)))


def main(*cases: str) -> None:
    """Prints the outcome of each case, and what was logged."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tfaccel").addHandler(handler)
    sys.stdout.write(json.dumps([{case: outcome_of(case) for case in cases}, lines]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
