"""Opens epochs of tfaccel's own pipelines at 10 % and at 90 %, and prints the seconds until the first batch is there.

    python -m tfaccel.benchmarks.resume_program TASK

TASK is JSON: a factor for the number of rows in memory. The output is JSON: the shortest seconds at both places, by
pipeline.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator

from tfaccel.planning.workload import Workload

PLACES = (0.1, 0.9)
RECIPES = ("image_classification", "tabular_classification", "sequence_forecasting", "text_classification")
_NUM_ROWS, _BATCH, _TIMES = 400_000, 32, 5


def main(argv: list[str]) -> int:
    """Measures; returns the exit status."""
    task = json.loads(argv[1])
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tfaccel.planning.load_workload import as_workload
    from tfaccel.processes.child import end_with_parent

    end_with_parent()

    def arrays() -> Workload:
        import keras
        import numpy as np

        x = np.ones((max(20 * _BATCH, round(_NUM_ROWS * task["scale"])), 8), np.float32)
        return Workload.of(
            lambda: keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)]),
            x,
            x[:, :1],
            optimizer="sgd",
            loss="mse",
            batch_size=_BATCH,
        )

    found = {"arrays": _seconds(arrays())}
    found |= {name: _seconds(as_workload(name)) for name in RECIPES}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def _seconds(workload: Workload) -> list[float]:
    """The shortest time at each place; both are measured in turn, since other work slows the machine down at times."""
    timed = [list(_once(workload)) for _ in range(_TIMES)]
    return [min(times) for times in zip(*timed[1:], strict=True)]  # the first ones read files


def _once(workload: Workload) -> Iterator[float]:
    import tensorflow as tf

    from tfaccel.data.feeds import ResumedPlace
    from tfaccel.planning.plan import Plan
    from tfaccel.training.run.workload_source import WorkloadSource
    from tfaccel.training.steps.replicas import Replicas

    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=workload.global_batch_size)
    replicas = Replicas(tf.distribute.get_strategy())
    whole = WorkloadSource(workload, plan, replicas, seed=0)
    num_batches = whole.num_batches or 1
    whole.close()
    for place in PLACES:
        step = round(num_batches * place)
        began = time.perf_counter()
        source = WorkloadSource(workload, plan, replicas, seed=0, start=ResumedPlace(step=step, batches=step))
        tf.nest.map_structure(lambda leaf: leaf.numpy(), source.feed().peek())
        yield time.perf_counter() - began
        source.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
