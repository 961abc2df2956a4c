"""A script that trains with a run at an address, and may kill itself on the way.

    python remote_run_program.py fit|train ADDRESS [EPOCH]

Prints the SHA-256 of the weights and the losses, as JSON. With EPOCH, it ends with SIGKILL after that epoch.
"""

import hashlib
import json
import os
import signal
import sys
from typing import Any

import keras
import numpy as np

import tfaccel

KILLED_AFTER = int(sys.argv[3]) if len(sys.argv) > 3 else None


class Kill(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if KILLED_AFTER is not None and epoch == KILLED_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)


def build_model() -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("adam", "mse")
    return model


def main(verb: str, address: str) -> None:
    x = np.random.default_rng(0).normal(size=(200, 8)).astype("float32")
    how: dict[str, Any] = {"batch_size": 32, "epochs": 5, "verbose": 0}
    model = build_model()
    if verb == "fit":
        resume = tfaccel.Resume(address, save_freq=3)
        history = tfaccel.fit(model, x, x[:, :1], callbacks=[resume, Kill()], **how).history
    else:
        how |= {"run_dir": address, "resume": "auto", "checkpoint_interval": 3}
        history = tfaccel.train(model, x, x[:, :1], callbacks=[Kill()], **how).history
    weights = hashlib.sha256(b"".join(array.tobytes() for array in model.get_weights())).hexdigest()
    print(json.dumps([weights, history["loss"]]))


if __name__ == "__main__":
    main(*sys.argv[1:3])
