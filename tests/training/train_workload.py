"""A small workload for tests of `train`: dropout, batch normalization, Adam, early stopping."""

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel import Plan, Workload, train

NUM_ROWS, BATCH = 44, 8
PLANS = {
    "none": {"strategy": "none", "devices": ("CPU:0",)},
    "mirrored_2": {"strategy": "mirrored", "devices": ("CPU:0", "CPU:1"), "num_logical_cpus": 2},
    "workers_2": {"strategy": "multi_worker_mirrored", "devices": ("CPU:0",), "num_workers": 2},
}


def plan(name: str, **fields: Any) -> Plan:
    return Plan(**{"global_batch_size": BATCH, **PLANS[name], **fields})


def rows(nan_row: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(NUM_ROWS, 4)).astype("float32")
    y = (x @ generator.normal(size=(4, 1)) + 0.3).astype("float32")
    if nan_row is not None:
        x[nan_row] = np.nan
    return x, y


def workload(*, nan_row: int | None = None, loss_scale: bool = False, learning_rate: float = 0.05) -> Workload:
    def build_model() -> Any:
        import keras

        layers = [
            keras.layers.Dense(6),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1, dtype="float32"),
        ]
        return keras.Sequential([keras.Input((4,)), *layers])

    def compile_args() -> dict[str, Any]:
        import keras

        optimizer = keras.optimizers.Adam(learning_rate, use_ema=True, ema_momentum=0.9)
        if loss_scale:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0, dynamic_growth_steps=3)
        return {"optimizer": optimizer, "loss": "mse", "metrics": ["mae"]}

    def train_data(global_batch_size: int, *, seed: int, epoch: int) -> Any:
        import tensorflow as tf

        x, y = rows(nan_row)
        if nan_row is None:
            order = np.random.default_rng([seed, epoch]).permutation(NUM_ROWS)
            x, y = x[order], y[order]
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(global_batch_size)

    def validation_data(global_batch_size: int) -> Any:
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices(rows()).batch(global_batch_size)

    return Workload("small", build_model, compile_args, train_data, validation_data, global_batch_size=BATCH)


def callbacks(die_at: str) -> list[Any]:
    """Early stopping, a rate that is halved on plateaus, noise on a bias, and a callback that exits at "epoch.step"."""
    import keras

    state = {"noise": 0.0}

    class Noise(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            state["noise"] = 0.5 * state["noise"] + 1e-6 * (np.random.rand() + random.random())
            bias = self.model.trainable_variables[-1]
            bias.assign(bias + state["noise"])

    class Death(keras.callbacks.Callback):
        tfaccel_windows = True
        epoch = 0

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_begin(self, batch, logs=None):
            if f"{self.epoch}.{batch}" == die_at:
                os._exit(7)

        def on_test_begin(self, logs=None):
            if f"{self.epoch}.validation" == die_at:
                os._exit(7)

    stopping = keras.callbacks.EarlyStopping("val_loss", min_delta=0.1, patience=3, restore_best_weights=True)
    halving = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.05)
    return [stopping, halving, Noise(), Death()]


def outcome(run_dir: str, placement: str, die_at: str, **fields: Any) -> list[Any]:
    """Trains into `run_dir`, resuming if it holds a run; returns what must not depend on an interruption."""
    import keras

    made = workload(loss_scale=True)
    result = train(
        made,
        plan(placement, accumulation_steps=2, dtype_policy="mixed_float16", **fields),
        run_dir=run_dir,
        epochs=12,
        seed=3,
        checkpoint_interval=1,
        resume="auto",
        verbose=0,
        callbacks=callbacks(die_at),
    )
    weights = keras.models.load_model(Path(run_dir) / "model.keras", compile=False).get_weights()
    lines = [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
        line.pop("workers", None)
        line.pop("performance", None)  # a call that resumes after the last step of an epoch measures nothing
    return [[weight.tobytes().hex() for weight in weights], lines, result.history, result.final]


def once(run_dir: str, placement: str, die_at: str) -> None:
    """Trains once in this process and prints the outcome."""
    sys.stdout.write(json.dumps(outcome(run_dir, placement, die_at)) + "\n")


def main(run_dir: str, placement: str, die_at: str = "never") -> None:
    """Prints the outcomes of a run that may exit at `die_at`, of resuming it when finished, and of a separate run."""
    found = outcome(run_dir, placement, die_at)
    again = outcome(run_dir, placement, die_at)
    sys.stdout.write(json.dumps([found, again, outcome(f"{run_dir}-without-a-stop", placement, "never")]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
