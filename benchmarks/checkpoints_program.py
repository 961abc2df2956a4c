"""Trains a CNN with or without regular checkpoints, and prints the steps per second of each epoch but the first.

    python -m tfaccel.benchmarks.checkpoints_program TASK

TASK is JSON: the steps between checkpoints (null for none within the run), and a factor for the length of the run.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import replace

NUM_EPOCHS, STEPS_PER_EPOCH = 4, 300
BATCH_SIZE = 8  # steps of 20 ms or a little more


def main(argv: list[str]) -> int:
    """Trains; returns the exit status."""
    task = json.loads(argv[1])
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tfaccel.benchmarks.choice_tasks import FAMILIES, workload
    from tfaccel.planning.plan import Plan
    from tfaccel.planning.plan_environment import get_environment
    from tfaccel.processes.child import end_with_parent

    end_with_parent()
    plan = Plan(
        strategy="none",
        devices=("CPU:0",),
        global_batch_size=BATCH_SIZE,
        onednn=True,
        fused_kernels=True,
    )
    os.environ.update(get_environment(plan))
    import keras

    from tfaccel.data.given_data import GivenArrays
    from tfaccel.training.train import train

    num_steps = max(4, round(STEPS_PER_EPOCH * task["scale"]))
    family = replace(FAMILIES["cnn"], global_batch_size=BATCH_SIZE, steps_per_epoch=num_steps)
    made = replace(workload("cnn"), train_data=GivenArrays(*family.arrays()), num_train_examples=family.num_examples)

    class Clock(keras.callbacks.Callback):
        """Times epochs, from the end of one to the end of the next."""

        tfaccel_windows = True

        def __init__(self) -> None:
            super().__init__()
            self.ends: tuple[float, ...] = ()

        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            """Records the time."""
            self.ends = (*self.ends, time.perf_counter())

    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="tfaccel-") as folder:
        # Without an interval: one that the run does not reach, so that no epoch ends with a checkpoint either.
        interval = task["interval"] or 10**6
        train(made, plan, run_dir=folder, epochs=NUM_EPOCHS, checkpoint_interval=interval, callbacks=[clock], verbose=0)
    rates = [num_steps / (after - before) for before, after in zip(clock.ends, clock.ends[1:], strict=False)]
    sys.stdout.write(json.dumps(rates) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
