"""A worker of the benchmark of faults: trains a small model, and does something to itself when it is told to.

    python -m tfaccel.benchmarks.faults_program RUN_DIR FAULT

FAULT is `WORKER,STEP,ACTION`: at the end of the first window at or after that step, that worker does the action, a
signal's name or "exception", in the first attempt of a launch. "none" for none. The program prints the time of the
fault, and at the end a digest of the losses and weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

EPOCHS, NUM_ROWS, BATCH, CHECKPOINT_INTERVAL = 6, 640, 16, 10
STEPS_PER_EPOCH = NUM_ROWS // BATCH


def main(argv: list[str]) -> int:
    """Trains; returns the exit status."""
    run_dir, fault = argv[1], argv[2]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import numpy as np

    from tfaccel.training.train import train

    config = json.loads(os.environ.get("TF_CONFIG") or '{"task": {"index": 0}}')
    random = np.random.default_rng(0)
    x = random.normal(size=(NUM_ROWS, 8)).astype("float32")
    result = train(
        _build_model,
        x,
        (x @ random.normal(size=(8, 1))).astype("float32"),
        run_dir=run_dir,
        epochs=EPOCHS,
        checkpoint_interval=CHECKPOINT_INTERVAL,
        callbacks=[_fault_callback(fault, config["task"]["index"])],
        verbose=0,
        optimizer="adam",
        loss="mse",
        batch_size=BATCH,
        validation_split=0.1,
    )
    model = keras.saving.load_model(Path(run_dir) / "model.keras")
    digest = hashlib.sha256(json.dumps([result.history, result.final]).encode())
    for weight in model.get_weights():
        digest.update(weight.tobytes())
    sys.stdout.write(f"digest {digest.hexdigest()}\n")
    return 0


def _build_model() -> Any:
    import keras

    layers = [keras.layers.Dense(16), keras.layers.BatchNormalization(), keras.layers.ReLU(), keras.layers.Dropout(0.2)]
    return keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1)])


def _fault_callback(fault: str, index: int) -> Any:
    import keras

    worker, step, action = (fault.split(",") + ["", ""])[:3]
    is_due = fault != "none" and int(worker) == index and os.environ.get("TFACCEL_LAUNCH_ATTEMPT") == "1"

    class Fault(keras.callbacks.Callback):
        """Does the action once."""

        tfaccel_windows = True
        epoch = 0
        done = False

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            """Notes the epoch."""
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Does it if the step has come."""
            if is_due and not self.done and self.epoch * STEPS_PER_EPOCH + batch + 1 >= int(step):
                self.done = True
                sys.stdout.write(f"fault {time.time()}\n")
                sys.stdout.flush()
                if action == "exception":
                    raise ValueError("a mistake in a callback")
                os.kill(os.getpid(), getattr(signal, action))

    return Fault()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
