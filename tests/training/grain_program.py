"""A script that trains on Grain pipelines with `train` and with `fit` and `Resume`; it is killed once in each run.

Arguments: the folder of the runs, whether to kill, and the runs: "train" or "fit", and the name of a pipeline.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
from grain_pipelines import PIPELINES

import tfaccel

FOLDER = Path(sys.argv[1])


class KilledOnce(keras.callbacks.Callback):
    """Kills the process in the middle of the second epoch, unless an earlier one has been killed there."""

    def __init__(self, marker):
        super().__init__()
        self.marker = str(marker)
        self.epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 1 and batch == 4 and not os.path.exists(self.marker):
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)


def run(verb, name, *, kills):
    folder = FOLDER / f"{verb} {name}"
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(6, activation="tanh"), keras.layers.Dropout(0.3, seed=1), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("adam", "mse")
    callbacks = [KilledOnce(FOLDER / f"{verb} {name}.killed")] if kills else []
    options = {"epochs": 3, "verbose": 0, "callbacks": callbacks}
    if verb == "train":
        options |= {"run_dir": folder, "resume": "auto", "checkpoint_interval": 2, "strategy": "none"}
        history = tfaccel.train(model, PIPELINES[name](), **options).history
    else:
        callbacks.append(tfaccel.Resume(folder, save_freq=2))
        history = tfaccel.fit(model, PIPELINES[name](), shuffle=False, **options).history
    digest = hashlib.sha256(b"".join(np.asarray(weight).tobytes() for weight in model.weights)).hexdigest()
    return [digest, history["loss"]]


if __name__ == "__main__":
    found = [run(*one.split(" ", 1), kills=sys.argv[2] == "kills") for one in sys.argv[3:]]
    sys.stdout.write(json.dumps(found) + "\n")
