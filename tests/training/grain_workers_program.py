"""A script that trains on a Grain pipeline, alone or as each worker of a group; the argument HOW is of worker 1.

python grain_workers_program.py FOLDER well|killed|shards
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
from grain_pipelines import PIPELINES, rows

import tfaccel
from tfaccel.processes import launched

INDEX = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]


class Dies(keras.callbacks.Callback):
    """Kills worker 1 in the middle of the second epoch of the first attempt."""

    epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if INDEX == 1 and os.environ.get(launched.ATTEMPT, "1") == "1" and (self.epoch, batch) == (1, 5):
            os.kill(os.getpid(), signal.SIGKILL)


def build_model():
    layers = [keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("sgd", "mse")
    return model


def main(folder, how):
    pipeline = rows()[INDEX::2].batch(4) if how == "shards" else PIPELINES["iter"]()
    result = tfaccel.train(
        build_model,
        pipeline,
        epochs=2,
        run_dir=Path(folder) / "run",
        resume="auto",
        checkpoint_interval=2,
        callbacks=[Dies()] if how == "killed" else [],
        verbose=0,
    )
    weights = keras.models.load_model(Path(folder) / "run/model.keras").get_weights() if INDEX == 0 else []
    digest = hashlib.sha256(b"".join(np.asarray(weight).tobytes() for weight in weights)).hexdigest()
    sys.stdout.write(f"ended {json.dumps([result.history['loss'], digest, result.plan.num_workers])}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
