"""For tests of data workers: trains with and without them, kills them meanwhile, and writes what came out."""

import hashlib
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel import Plan, Workload, train
from tfaccel.errors import DataError

NUM_ROWS, BATCH, EPOCHS, SEED = 70, 8, 2, 3  # 8 batches in an epoch
WARNINGS: list[str] = []


def data() -> Any:
    """Rows that are made of files in the pipeline, with noise of their own."""
    import tensorflow as tf

    from tfaccel.data.pipeline import Augmentation, Pipeline

    def read(rows: Any) -> Any:
        text = tf.io.read_file(__file__)
        numbers = tf.cast(tf.strings.unicode_decode(text, "UTF-8")[:4], tf.float32) / 100
        x = numbers * tf.cast(rows[:, tf.newaxis] % 7, tf.float32) + tf.constant([0.1, 0.2, 0.3, 0.4])
        return tf.ensure_shape(x, [rows.shape[0], 4]), tf.reduce_sum(x, axis=1, keepdims=True)

    noise = Augmentation(
        lambda generator, count: generator.standard_normal((count, 4), np.float32) / 10,
        lambda pair, numbers: (pair[0] + numbers, pair[1]),
    )
    return Pipeline(read, num_examples=NUM_ROWS, augmentation=noise)


def workload() -> Workload:
    from tfaccel.data import Batches

    def build_model() -> Any:
        import keras

        layers = [keras.layers.Dense(6), keras.layers.Dropout(0.2), keras.layers.ReLU(), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((4,)), *layers])

    return Workload(
        "from_files",
        build_model,
        lambda: {"optimizer": "adam", "loss": "mse"},
        data=Batches("rows", data, num_train_examples=NUM_ROWS, takes_every=True),
        global_batch_size=BATCH,
    )


def plan(data_service: int | None, num_workers: int = 1) -> Plan:
    strategy = "none" if num_workers == 1 else "multi_worker_mirrored"
    base = {"strategy": strategy, "devices": ("CPU:0",), "num_workers": num_workers, "global_batch_size": BATCH}
    return Plan(**base, steps_per_execution=1, data_service=data_service)


def outcome(run_dir: Path, data_service: int | None, **options: Any) -> dict[str, Any]:
    """The weights and losses of a run."""
    import keras

    plan_of_run = plan(data_service, options.pop("num_workers", 1))
    result = train(workload(), plan_of_run, run_dir=run_dir, epochs=EPOCHS, seed=SEED, verbose=0, **options)
    weights = keras.models.load_model(run_dir / "model.keras", compile=False).get_weights()
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).hexdigest()
    return {"weights": digest, "loss": result.history["loss"]}


def own_processes(kind: str) -> list[int]:
    """The processes of the data service that descend from this one, by what they are ("worker-0", "dispatcher")."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (place / "stat").read_text().partition("(")[2].rpartition(")")
            found[int(place.name)] = (name, int(rest.split()[1]))
        except (OSError, IndexError, ValueError):
            continue

    def descends(process: int) -> bool:
        while process > 1 and process != os.getpid():
            process = found.get(process, ("", 0))[1]
        return process == os.getpid()

    return [process for process, (name, _) in found.items() if name.startswith(kind + ".") and descends(process)]


def callback(actions: dict[int, Any]) -> Any:
    """Acts after batches of the run, counted from 0."""
    import keras

    class Acts(keras.callbacks.Callback):
        num_batches = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            action = actions.get(self.num_batches)
            self.num_batches += 1
            if action is not None:
                action()

    return Acts()


def kill(kind: str) -> None:
    (process,) = own_processes(kind)
    os.kill(process, signal.SIGKILL)


def kill_again_and_again() -> None:
    """Kills data worker 0 whenever it serves, in a thread."""
    import threading

    def run() -> None:
        end = time.monotonic() + 120
        while time.monotonic() < end and own_processes("dispatcher"):
            for process in own_processes("worker-0"):
                os.kill(process, signal.SIGKILL)
            time.sleep(0.2)

    threading.Thread(target=run, daemon=True).start()


class _Stop(Exception):
    pass


def stop() -> None:
    raise _Stop


def resumed(run_dir: Path, before: int | None, after: int | None) -> dict[str, Any]:
    """A run that stops within an epoch, and is resumed there with other data workers."""
    try:
        outcome(run_dir, before, callbacks=[callback({4: stop})], checkpoint_interval=2)
    except _Stop:
        return outcome(run_dir, after, resume="auto", checkpoint_interval=2)
    return {}


def killed(run_dir: Path) -> dict[str, Any]:
    """A run whose data workers and dispatcher are killed within its epochs."""
    acts = {1: lambda: kill("worker-1"), 4: lambda: kill("worker-0"), 10: lambda: kill("dispatcher")}
    return outcome(run_dir, 2, callbacks=[callback(acts)])


def given_up(run_dir: Path) -> str:
    """The error of a run whose data worker cannot live."""
    try:
        outcome(run_dir, 1, callbacks=[callback({1: kill_again_and_again})])
    except DataError as error:
        return str(error)
    return ""


class _Kept(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        WARNINGS.append(record.getMessage())


def main(folder: str, *cases: str) -> None:
    logging.getLogger("tfaccel").addHandler(_Kept(logging.WARNING))
    at = Path(folder)
    run = {
        "without": lambda: outcome(at / "without", None),
        "killed": lambda: killed(at / "killed"),
        "resumed": lambda: resumed(at / "resumed", None, 2),
        "resumed without": lambda: resumed(at / "resumed_without", 1, None),
        "given up": lambda: given_up(at / "given_up"),
        "two workers": lambda: outcome(at / "two_workers", 2, num_workers=2),
        "two workers without": lambda: outcome(at / "two_workers_without", None, num_workers=2),
    }
    found = {case: run[case]() for case in cases}
    left = [process for kind in ("worker-0", "worker-1", "dispatcher") for process in own_processes(kind)]
    sys.stdout.write(json.dumps({**found, "warnings": WARNINGS, "left": left}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
