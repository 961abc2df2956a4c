"""A user's script under `tfaccel launch`: `fit` with `Resume`; worker 1 may kill itself on the first attempt.

python resume_launched_program.py FOLDER well|killed
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfaccel
from tfaccel.processes import launched


class Dies(keras.callbacks.Callback):
    """Kills worker 1 in the middle of the second epoch of the first attempt."""

    epoch = 0

    def __init__(self, how):
        super().__init__()
        self.how = how

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        is_second = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1
        if (
            self.how == "killed"
            and is_second
            and os.environ.get(launched.ATTEMPT, "1") == "1"
            and (self.epoch, batch) == (1, 5)
        ):
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder, how):
    keras.utils.set_random_seed(0)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    layers = keras.layers
    with strategy.scope():
        hidden = [layers.Dense(8), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.2)]
        model = keras.Sequential([keras.Input((4,)), *hidden, layers.Dense(1)])
        model.compile("adam", "mse", steps_per_execution=1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 4)).astype("float32")
    callbacks = [tfaccel.Resume(Path(folder) / "state", save_freq=2), Dies(how)]
    history = tfaccel.fit(model, x, x[:, :1], batch_size=8, epochs=3, callbacks=callbacks, verbose=0)
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights())).hexdigest()
    print("ended", json.dumps([history.history, digest]))


if __name__ == "__main__":
    main(*sys.argv[1:])
