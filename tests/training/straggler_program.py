"""Trains on two workers, the second of which is slow in its input ("input") or its computation ("compute"), or neither.

With "untimed", reductions between workers are not timed.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import train_workload

from tfaccel import Workload, train
from tfaccel.training.steps import engine


def is_second() -> bool:
    """Whether this is the second worker; a global variable would be compared between the workers."""
    return json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1


class Slow(keras.layers.Layer):
    """Adds zeros that take the second worker a tenth of a second to compute."""

    def call(self, x):
        def zeros():
            end = time.perf_counter() + 0.1
            while time.perf_counter() < end:
                pass
            return np.float32(0.0)

        return x + tf.ensure_shape(tf.numpy_function(zeros, [], tf.float32), []) if is_second() else x


def workload(slow: str) -> Workload:
    made = train_workload.workload()

    def build_model() -> Any:
        body = made.build_model()
        return keras.Sequential([keras.Input((4,)), Slow(), body]) if slow == "compute" else body

    def train_data(size: int, *, seed: int, epoch: int) -> Any:
        batches = made.train_data(size, seed=seed, epoch=epoch)
        if slow != "input" or not is_second():
            return batches

        def wait(x: Any, y: Any) -> Any:
            with tf.control_dependencies([tf.numpy_function(lambda: np.int64(time.sleep(0.1) is None), [], tf.int64)]):
                return tf.identity(x), y

        return batches.map(wait)

    return Workload("slow", build_model, made.compile_args, train_data, global_batch_size=8)


def main(folder: str, slow: str) -> None:
    if slow == "untimed":
        engine.ReduceClock = lambda: None
    run_dir = Path(folder) / slow
    plan = train_workload.plan("workers_2")
    result = train(workload(slow), plan, run_dir=run_dir, epochs=4, verbose=0)
    weights = keras.models.load_model(run_dir / "model.keras", compile=False) if slow != "compute" else None
    found: dict[str, Any] = {
        "bottleneck": result.bottleneck.to_json(),
        "workers": len(result.workers),
        "history": result.history,
        "weights": [] if weights is None else [weight.tolist() for weight in weights.get_weights()],
    }
    if not is_second():
        saved = json.loads((run_dir / "result.json").read_text())
        found["straggler"] = saved["straggler"]
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        found["rows"] = [row["workers"] for row in rows if "workers" in row]
    sys.stdout.write(json.dumps(found) + "\n")
