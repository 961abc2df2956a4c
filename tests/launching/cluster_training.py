"""A training that engines start as each of two workers; one may die on the first attempt.

    python cluster_training.py --run_dir=RUN_DIR HOW [SECONDS]

HOW is "well"; "killed", "stopped" or "wrong" if worker 1 is killed, stopped or raises an error after 20 of 36 steps of
the first attempt; "emptied" if it is killed when the run directory has been deleted; "slow" if each step takes SECONDS;
or "plain", the same without Dropout, which draws other numbers for another number of workers. Without TF_CONFIG, this
process trains alone.
"""

import hashlib
import json
import os
import shutil
import signal
import sys
import time

import numpy as np

from tfaccel import Plan, Workload, train
from tfaccel.processes import launched

NUM_ROWS, BATCH, EPOCHS = 96, 8, 3


def workload(dropout=0.2):
    def build_model():
        import keras

        layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(dropout), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((4,)), *layers])

    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_ROWS, 4)).astype("float32")
    y = (x @ rng.normal(size=(4, 1))).astype("float32")
    return Workload.of(build_model, x, y, batch_size=BATCH, optimizer="adam", loss="mse", name="small")


def cluster():
    """What TF_CONFIG says; without it, of a worker that is alone."""
    alone = {"cluster": {"worker": ["alone"]}, "task": {"index": 0}}
    return json.loads(os.environ.get("TF_CONFIG") or json.dumps(alone))


def fault(how, seconds, run_dir):
    import keras

    class Fault(keras.callbacks.Callback):
        num_steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.num_steps += 1
            time.sleep(seconds)
            is_first = os.environ.get(launched.ATTEMPT, "1") == "1"
            if is_first and self.num_steps == 20 and cluster()["task"]["index"] == 1:
                if how == "emptied":
                    time.sleep(5)  # until the checkpoint of step 20 has been reported
                    shutil.rmtree(run_dir)
                if how in ("killed", "emptied"):
                    os.kill(os.getpid(), signal.SIGKILL)
                if how == "stopped":
                    os.kill(os.getpid(), signal.SIGSTOP)
                if how == "wrong":
                    raise ValueError("what a user may write")

    return Fault()


def main(run_dir, how, seconds="0"):
    num_workers = len(cluster()["cluster"]["worker"])
    plan = Plan(
        strategy="multi_worker_mirrored" if num_workers > 1 else "none",
        devices=("CPU:0",),
        num_workers=num_workers,
        global_batch_size=BATCH,
        steps_per_execution=1,
        intra_op_threads=1,
        inter_op_threads=1,
    )
    train(
        workload(0.0 if how == "plain" else 0.2),
        plan,
        run_dir=run_dir,
        epochs=EPOCHS,
        seed=1,
        checkpoint_interval=5,
        callbacks=[fault(how, float(seconds), run_dir)],
        verbose=0,
    )


def get_layer_weights(run_dir):
    """The final weights."""
    import keras

    return keras.models.load_model(f"{run_dir}/model.keras", compile=False).get_weights()


def outcome(run_dir):
    """A digest of the final weights, and the losses of all epochs."""
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in get_layer_weights(run_dir))).hexdigest()
    with open(f"{run_dir}/metrics.jsonl") as file:
        return digest, [json.loads(line)["loss"] for line in file]


if __name__ == "__main__":
    main(sys.argv[1].removeprefix("--run_dir="), *sys.argv[2:])
