"""Trains with validation beside training and between epochs, in one process; prints what came out as JSON."""

import hashlib
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfaccel

CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 3)

ROWS = np.random.default_rng(0)
X, VALIDATION_X = (ROWS.normal(size=(count, 8)).astype("float32") for count in (480, 64))
Y, VALIDATION_Y = (x[:, :1] * x[:, 1:2] for x in (X, VALIDATION_X))
BESIDE = {"validate_on": "CPU:2"}
callbacks = keras.callbacks
said = []
logging.getLogger("tfaccel").addFilter(lambda record: said.append(record.getMessage()) or True)
logging.getLogger("tfaccel").setLevel(logging.INFO)


def build_model():
    hidden = [keras.layers.Dense(16, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
    return keras.Sequential([keras.Input((8,)), *hidden, keras.layers.Dense(1)])


@keras.saving.register_keras_serializable()
class SlowToEvaluate(keras.layers.Layer):
    """Takes half a second for each batch that is not trained."""

    def call(self, x, training=False):
        return x if training else tf.ensure_shape(tf.numpy_function(self.wait, [x], tf.float32), x.shape)

    def wait(self, x):
        time.sleep(0.5)
        return x


def build_slow_model():
    return keras.Sequential([keras.Input((8,)), SlowToEvaluate(), keras.layers.Dense(1)])


def trained(folder, model=build_model, validation_data=(VALIDATION_X, VALIDATION_Y), optimizer=None, **options):
    optimizer = optimizer or keras.optimizers.SGD(0.02, momentum=0.9)
    how = {"devices": 1, "num_logical_cpus": 3, "batch_size": 16, "epochs": 6, "verbose": 0, **options}
    of = {"optimizer": optimizer, "loss": "mse", "metrics": ["mae"], "validation_data": validation_data}
    result = tfaccel.train(model, X, Y, run_dir=folder, **of, **how)
    return {"history": result.history, "final": result.final, "weights": digest(folder / "model.keras")}


def digest(file):
    weights = keras.models.load_model(file, compile=False).get_weights()
    return hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).hexdigest()


def with_callbacks(folder, make, **options):
    """Beside training and between epochs: what came out, and what the best model's file has."""
    found = []
    for name, where in (("between", {}), ("beside", BESIDE)):
        best = folder / f"{name}.keras"
        outcome = trained(folder / name, callbacks=make(best), **where, **options)
        found.append({**outcome, "best": digest(best) if best.exists() else None})
    return found


def stopped_and_resumed(folder):
    """A run that SIGTERM reaches while the second epoch is validated and the third trains, and goes on."""

    def stopping(epoch, rate):
        if epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return rate

    def run(name, schedule=lambda epoch, rate: rate, **options):
        rates = callbacks.LearningRateScheduler(schedule)
        return trained(folder / name, build_slow_model, callbacks=[rates], epochs=4, **options)

    outcomes = [run("whole")]
    try:
        run("stopped", stopping, **BESIDE)
    except tfaccel.errors.RunStopped as stopped:
        outcomes.append(str(stopped))
    outcomes.append(run("stopped", resume="must", **BESIDE))
    return outcomes


def not_finite(folder):
    """What is left of a run whose loss becomes NaN in the third epoch, while the second one is validated."""
    found = []
    for name, where in (("between", {}), ("beside", BESIDE)):
        rates = callbacks.LearningRateScheduler(lambda epoch, rate: rate if epoch < 2 else 1e30)
        try:
            trained(
                folder / name,
                build_slow_model,
                callbacks=[rates],
                epochs=4,
                checkpoint_interval=1000,  # so that every epoch ends with one, however long saving takes
                **where,
            )
        except tfaccel.errors.NonFiniteLossError as error:
            rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
            scores = [[row["loss"], row["val_loss"]] for row in rows]
            steps = sorted(path.name for path in (folder / name / "checkpoints").glob("step_*"))
            found.append([str(error), scores, steps])
    return found


def main(folder):
    plateau = lambda best: [  # noqa: E731
        callbacks.ReduceLROnPlateau(patience=1, factor=0.5, min_delta=0.2),
        callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.97),
        callbacks.ModelCheckpoint(best, save_best_only=True),
    ]
    stopping = lambda best: [callbacks.EarlyStopping(patience=1, min_delta=0.2, restore_best_weights=True)]  # noqa: E731
    found = {
        "usual": with_callbacks(folder / "usual", lambda best: []),
        "stopping": with_callbacks(folder / "stopping", stopping),
        "checkpoints": with_callbacks(folder / "checkpoints", lambda best: [], checkpoint_interval=7),
        "stopped": stopped_and_resumed(folder / "stopped"),
    }
    found["not finite"] = not_finite(folder / "not_finite")
    said.clear()
    found["plateau"] = with_callbacks(folder / "plateau", plateau)
    found["repeated"] = sum("whose first steps are repeated" in line for line in said)
    found["replicas"] = with_callbacks(folder / "replicas", lambda best: [], devices=2, epochs=3)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
