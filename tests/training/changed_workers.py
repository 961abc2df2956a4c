"""A run that is stopped on some workers or replicas and continued on others; prints its losses and weights."""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import shard_workload
from train_workload import PLANS

import tfaccel

NUM_EPOCHS = 3


class Stop(keras.callbacks.Callback):
    """Stops training with an error at "epoch.batch"."""

    tfaccel_windows = True

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = (where,)
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if f"{self._epoch}.{batch}" == self._where[0]:
            if "TF_CONFIG" in os.environ:
                os._exit(7)
            raise KeyboardInterrupt


def run(run_dir: str | Path, placement: str, stop_at: str = "") -> list[Any]:
    """Losses and weights of a run that ends or continues with a placement of `train_workload`."""
    plan = tfaccel.Plan(global_batch_size=shard_workload.BATCH, **PLANS[placement])
    result = tfaccel.train(
        shard_workload.workload(sharded=True),
        plan,
        run_dir=run_dir,
        epochs=NUM_EPOCHS,
        seed=1,
        resume="auto",
        checkpoint_interval=2,
        callbacks=[Stop(stop_at)],
        verbose=0,
    )
    weights = keras.models.load_model(Path(run_dir, "model.keras"), compile=False).get_weights()
    del weights[1]  # a bias before batch normalization: its gradient is rounding error, which Adam scales up
    return [result.history["loss"], np.concatenate([weight.ravel() for weight in weights]).tolist()]


def main(*changes: str) -> None:
    """Prints the outcomes of runs with changes such as "mirrored_2 none", and of an undisturbed run without a strategy.

    The first change must begin with the placement that needs most devices.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for change in changes:
            before, after = change.split()
            run_dir = Path(folder, before)
            try:
                run(run_dir, before, "1.3")
                raise SystemExit(f"The run was not stopped: {change}")
            except KeyboardInterrupt:
                found[change] = run(run_dir, after)
        found["whole"] = run(Path(folder, "whole"), "none")
    sys.stdout.write(json.dumps(found) + "\n")


def once(run_dir: str, placement: str, stop_at: str = "") -> None:
    """Trains once, and prints the outcome."""
    sys.stdout.write(json.dumps(run(run_dir, placement, stop_at)) + "\n")
