"""Runs that get SIGTERM or Ctrl-C at a given moment, and are resumed; prints what must equal an undisturbed run."""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import keras
import train_workload

import tfaccel

NUM_EPOCHS = 3
SIGNALS = {"TERM": signal.SIGTERM, "INT": signal.SIGINT}


class SendSignal(keras.callbacks.Callback):
    """Sends a signal to this process at "place" or "place epoch.batch", such as "batch 1.2" or "validation 0.0"."""

    tfaccel_windows = True

    def __init__(self, where: str, name: str) -> None:
        super().__init__()
        self._when = (where, SIGNALS[name])  # checkpoints keep texts and numbers, but no tuples
        self._epoch = 0

    def _at(self, where: str) -> None:
        if where == self._when[0]:
            os.kill(os.getpid(), self._when[1])

    def on_train_begin(self, logs: Any = None) -> None:
        self._at("begin")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._at(f"batch {self._epoch}.{batch}")

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._at(f"validation {self._epoch}.{batch}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._at(f"end {epoch}")

    def on_train_end(self, logs: Any = None) -> None:
        self._at("trained")


def run(run_dir: Path, where: str = "", name: str = "TERM", placement: str = "none", **options: Any) -> list[Any]:
    """What a run leaves, whether or not it was stopped before."""
    work = train_workload.workload(loss_scale=True)
    fields = {"accumulation_steps": 2, "dtype_policy": "mixed_float16", "steps_per_execution": 1}
    plan = train_workload.plan(placement, **fields)
    options = {"epochs": NUM_EPOCHS, "seed": 3, "resume": "auto", "verbose": 0, **options}
    result = tfaccel.train(work, plan, run_dir=run_dir, callbacks=[SendSignal(where, name)], **options)
    weights = keras.models.load_model(run_dir / "model.keras", compile=False).get_weights()
    return [[weight.tobytes().hex() for weight in weights], result.history, result.final]


def stopped(run_dir: Path, where: str, name: str, **options: Any) -> list[Any]:
    """How a run was stopped, and its checkpoints."""
    try:
        run(run_dir, where, name, **options)
    except (tfaccel.errors.RunStopped, KeyboardInterrupt) as error:
        left = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
        return [type(error).__name__, str(error).replace(str(run_dir), "RUN"), left]
    return ["nothing", "", []]


def main(*cases: str) -> None:
    """Prints the outcome of an undisturbed run, and for each case how it was stopped and what it gives when resumed."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = {"whole": run(Path(folder, "whole"))}
        for case in cases:
            where, _, name = case.rpartition(" ")
            run_dir = Path(folder, case.replace(" ", "_"))
            outcomes[case] = [*stopped(run_dir, where, name), run(run_dir)]
    sys.stdout.write(json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
