"""A worker process of the scaling benchmark: trains a small model on one core, and times its steps.

It is given a JSON object with "models", "num_windows" and "num_steps". The first worker prints a JSON line: model ->
times of a step with the replica's whole batch and with half of it, and the bytes of the gradients.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload

REPLICA_BATCH_SIZES = {"mlp": 256, "cnn": 64}


def main(arguments: list[str]) -> int:
    """Trains alone, or as one worker of the cluster in `TF_CONFIG`; returns the exit status."""
    task = json.loads(arguments[0])
    config = json.loads(os.environ.get("TF_CONFIG") or '{"cluster": {"worker": [""]}, "task": {"index": 0}}')
    index, num_workers = config["task"]["index"], len(config["cluster"]["worker"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[index % len(cores)]})
    found = {name: _measured(name, num_workers, task) for name in task["models"]}
    if index == 0:
        sys.stdout.write(json.dumps(found) + "\n")
    return 0


def workload(name: str) -> Workload:
    """A model with random data: `mlp` has 2.2 million weights, `cnn` 20 thousand."""
    import keras
    import numpy as np

    layers = keras.layers
    shape: tuple[int, ...] = (64,) if name == "mlp" else (16, 16, 3)

    def build_model() -> Any:
        if name == "mlp":
            inner = [layers.Dense(1024, "relu"), layers.Dense(1024, "relu"), layers.Dense(1024, "relu")]
        else:
            inner = [layers.Conv2D(size, 3, activation="relu", padding="same") for size in (16, 32, 32)]
            inner.append(layers.GlobalAveragePooling2D())
        model = keras.Sequential([keras.Input(shape), *inner, layers.Dense(10)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    random = np.random.default_rng(0)
    x, y = random.normal(size=(8192, *shape)).astype("float32"), random.integers(0, 10, 8192)
    return Workload.of(build_model, x, y, batch_size=REPLICA_BATCH_SIZES[name])


def _measured(name: str, num_workers: int, task: dict[str, Any]) -> dict[str, Any]:
    """Times of a step with the whole replica batch and with half of it, and the bytes of each gradient."""
    from tfaccel.training.run.timed_steps import TimedSteps
    from tfaccel.training.runtime import Runtime

    found: dict[str, Any] = {}
    made = workload(name)
    for label, part in (("whole", 1), ("half", 2)):
        plan = Plan(
            strategy="none" if num_workers == 1 else "multi_worker_mirrored",
            devices=("CPU:0",),
            num_workers=num_workers,
            global_batch_size=num_workers * REPLICA_BATCH_SIZES[name] // part,
            intra_op_threads=1,
            inter_op_threads=1,
        )
        with Runtime(plan, seed=0) as runtime:
            steps = TimedSteps(made, plan, runtime.strategy, seed=0)
            for _ in range(2):
                steps.window(task["num_steps"])
            windows = [steps.window(task["num_steps"]) for _ in range(task["num_windows"])]
            steps.close()
        found[label] = [window.seconds / window.num_steps for window in windows]
    found["gradient_bytes"] = [4 * int(weight.numpy().size) for weight in made.build_model().trainable_weights]
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
