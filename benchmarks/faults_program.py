"""A worker of the benchmark of faults: trains a small model, and does something to itself when it is told to.

    python -m tfaccel.benchmarks.faults_program RUN_DIR [OPTIONS]

OPTIONS is a JSON object:

* `fault`: `[WORKER, STEP, ACTION, UNTIL]`: at the end of the first window at or after that step, that worker does the
  action (see `fault_actions`), in the first attempt of a launch, and undoes it at step UNTIL, if that is given.
* `pause`: seconds to sleep after each window, so that a fault from outside finds a run in progress.
* `takes_port`: the worker whose port another program uses, in the first attempt.
* `plain`: no layers whose results depend on the other rows of a batch, or on how batches are split; no oneDNN, which
  keeps the memory of a step for the next one.
* `width`, `depth`: units and number of the hidden layers, for steps that take longer and checkpoints that are larger.
* `slow`: the worker that takes 50 ms more for each step.
* `nan_row`: the row of the data that has a NaN; `on_nonfinite`: of the training.
* `epochs`, `checkpoint_interval`, `batch_size`, `seed`, `resume`: of the training.

The program prints the time when it asks to train; "begun" with its process id and the time when training begins, and
"trained" with both when its first window has ended; the time of the fault; and at the end a digest of losses and
weights, and whether each epoch saw each example exactly once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.fault_actions import act, no_action

EPOCHS, NUM_ROWS, BATCH, CHECKPOINT_INTERVAL = 4, 640, 16, 10
NUM_VALIDATION_ROWS = NUM_ROWS // 10
STEPS_PER_EPOCH = (NUM_ROWS - NUM_VALIDATION_ROWS) // BATCH
SEEN_ONCE = "seen_once"
_SLOW_SECONDS = 0.05


def main(argv: list[str]) -> int:
    """Trains; returns the exit status."""
    run_dir, options = argv[1], json.loads(argv[2]) if len(argv) > 2 else {}
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.get("plain"):
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
    import keras  # noqa: F401  # before the clock starts

    config = json.loads(os.environ.get("TF_CONFIG") or '{"task": {"index": 0}}')
    index, is_first = config["task"]["index"], os.environ.get("TFACCEL_LAUNCH_ATTEMPT", "1") == "1"
    with contextlib.ExitStack() as stack:
        if is_first and options.get("takes_port") == index:
            port = int(config["cluster"]["worker"][index].rpartition(":")[2])
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        _say(f"asked {time.time()}")
        _train(run_dir, options, index)
    return 0


def _train(run_dir: str, options: dict[str, Any], index: int) -> None:
    import keras
    import numpy as np

    from tfaccel.training.train import train

    random = np.random.default_rng(0)
    x = random.normal(size=(NUM_ROWS, 8)).astype("float32")
    targets = (x @ random.normal(size=(8, 1))).astype("float32")
    if "nan_row" in options:
        x[options["nan_row"], 0] = np.nan
    result = train(
        lambda: _build_model(options.get("width", 16), options.get("depth", 1), bool(options.get("plain"))),
        x,
        np.concatenate([targets, np.arange(NUM_ROWS, dtype="float32")[:, None]], axis=1),
        run_dir=run_dir,
        epochs=options.get("epochs", EPOCHS),
        seed=options.get("seed", 0),
        resume=options.get("resume", "never"),
        checkpoint_interval=options.get("checkpoint_interval", CHECKPOINT_INTERVAL),
        on_nonfinite=options.get("on_nonfinite", "stop"),
        callbacks=[_fault_callback(options, index, Path(run_dir))],
        verbose=0,
        name="faults",
        optimizer="adam",
        loss=_squared_error if "slow" not in options else _slowed(options["slow"]),
        metrics=lambda: [_seen_once()],
        batch_size=options.get("batch_size", BATCH),
        validation_split=0.1,
    )
    model = keras.saving.load_model(Path(run_dir) / "model.keras", compile=False)
    digest = hashlib.sha256(json.dumps([result.history, result.final]).encode())
    for weight in model.get_weights():
        digest.update(weight.tobytes())
    once = {*result.history[SEEN_ONCE]} == {NUM_ROWS - NUM_VALIDATION_ROWS}
    once = once and {*result.history[f"val_{SEEN_ONCE}"]} == {NUM_VALIDATION_ROWS}
    _say(f"digest {digest.hexdigest()}\nonce {once}")


def _build_model(width: int, depth: int, is_plain: bool) -> Any:
    import keras

    layers: list[Any] = []
    for _ in range(depth):
        layers += [keras.layers.Dense(width)]
        layers += [] if is_plain else [keras.layers.BatchNormalization()]
        layers += [keras.layers.ReLU()]
    layers += [] if is_plain else [keras.layers.Dropout(0.2)]
    return keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1)])


def _squared_error(y_true: Any, y_pred: Any) -> Any:
    """Of the first column; the second one is the row's number."""
    import keras

    return keras.ops.mean(keras.ops.square(y_true[:, :1] - y_pred), axis=-1)


def _slowed(worker: int) -> Callable[..., Any]:
    """The loss, for which one worker takes longer; all workers have the same code."""
    import numpy as np
    import tensorflow as tf

    def wait() -> Any:
        time.sleep(_SLOW_SECONDS)
        return np.float32(0.0)

    def loss(y_true: Any, y_pred: Any) -> Any:
        error = _squared_error(y_true, y_pred)
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] != worker:
            return error
        return error + tf.ensure_shape(tf.numpy_function(wait, [], tf.float32), [])

    return loss


def _seen_once() -> Any:
    import keras

    class SeenOnce(keras.metrics.Metric):
        """The number of rows that an epoch has seen once, minus those that it has seen again.

        The counts are a part of checkpoints, so they tell what the committed history of a resumed run has seen.
        """

        def __init__(self) -> None:
            super().__init__(name=SEEN_ONCE)
            self.counts = self.add_weight(shape=(NUM_ROWS,), initializer="zeros", name="counts")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            """Counts the rows of a batch."""
            rows = keras.ops.one_hot(keras.ops.cast(y_true[:, 1], "int32"), NUM_ROWS)
            self.counts.assign_add(keras.ops.sum(rows, axis=0))

        def result(self) -> Any:
            """The number."""
            once = keras.ops.cast(self.counts == 1, "float32")
            return keras.ops.sum(once - keras.ops.cast(self.counts > 1, "float32"))

    return SeenOnce()


def _fault_callback(options: dict[str, Any], index: int, run_dir: Path) -> Any:
    import keras

    worker, step, action, *until = options.get("fault") or (-1, 0, "")
    is_due = worker == index and os.environ.get("TFACCEL_LAUNCH_ATTEMPT", "1") == "1"

    class Fault(keras.callbacks.Callback):
        """Does the action once, and undoes it."""

        tfaccel_windows = True
        epoch = 0
        trained_by = 0  # the process; the attribute is resumed

        def on_train_begin(self, logs: Any = None) -> None:
            """Says that training begins."""
            self.undo = None
            _say(f"begun {os.getpid()} {time.time()}")

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            """Notes the epoch."""
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Does it if the step has come."""
            if self.trained_by != os.getpid():
                self.trained_by = os.getpid()
                _say(f"trained {os.getpid()} {time.time()}")
            time.sleep(options.get("pause", 0))
            now = self.epoch * STEPS_PER_EPOCH + batch + 1
            if is_due and self.undo is None and now >= step:
                self.undo = no_action
                _say(f"fault {time.time()}")
                self.undo = act(action, run_dir)
            elif self.undo is not None and until and now >= until[0]:
                self.undo()
                self.undo = no_action

    return Fault()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
