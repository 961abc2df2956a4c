"""Trains a model with large activations under a memory limit of TensorFlow's CPU allocator."""

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel import Plan, TfaccelError, Workload, train

BATCH, NUM_ROWS = 1024, 2048 + 512
PLANS = {
    "none": {"strategy": "none", "devices": ("CPU:0",)},
    "mirrored_2": {"strategy": "mirrored", "devices": ("CPU:0", "CPU:1"), "num_logical_cpus": 2},
}


def rows() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(NUM_ROWS, 8)).astype("float32")
    return x, x[:, :1] - x[:, 1:2]


def train_data(global_batch_size: int, *, seed: int, epoch: int) -> Any:
    import tensorflow as tf

    x, y = rows()
    order = np.random.default_rng([seed, epoch]).permutation(NUM_ROWS)
    return tf.data.Dataset.from_tensor_slices((x[order], y[order])).batch(global_batch_size)


def build_model(normalized: bool = False) -> Any:
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(32, activation="relu"),
            *([layers.BatchNormalization(name="norm")] if normalized else []),
            layers.Dropout(0.2),
            layers.RepeatVector(256),
            layers.Activation("softsign"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1, dtype="float32"),
        ]
    )


def compile_args() -> dict[str, Any]:
    import keras

    schedule = keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.9)
    return {"optimizer": keras.optimizers.Adam(schedule), "loss": "mse", "metrics": ["mae"]}


def workload(**options: Any) -> Workload:
    return Workload("wide", lambda: build_model(**options), compile_args, train_data, global_batch_size=BATCH)


def outcome(run_dir: str, plan: Plan, **options: Any) -> dict[str, Any]:
    """Trains into `run_dir`; returns the weights, the metrics and the plan, or the error."""
    import keras

    try:
        result = train(workload(), plan, run_dir=run_dir, epochs=2, seed=3, verbose=0, **options)
    except TfaccelError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    weights = keras.models.load_model(Path(run_dir) / "model.keras", compile=False).get_weights()
    return {
        "weights": [weight.tobytes().hex() for weight in weights],
        "history": result.history,
        "accumulation_steps": result.plan.accumulation_steps,
        "plan": json.loads((Path(run_dir) / "plan.json").read_text()),
    }


def main(placement: str, *accumulation_steps: str) -> None:
    """Prints the outcome of a run for each number of accumulation steps, and what was logged."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tfaccel").addHandler(handler)
    found = []
    for steps in map(int, accumulation_steps):
        with tempfile.TemporaryDirectory() as folder:
            plan = Plan(**PLANS[placement], global_batch_size=BATCH, accumulation_steps=steps)
            found.append(outcome(folder, plan))
    sys.stdout.write(json.dumps([found, lines]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
