"""A user's script that starts workers: `python workers_script.py RUN_DIR ENGINE [HOW]`; prints the result as JSON."""

import json
import os
import sys

import keras
import numpy as np

import tfaccel


class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise ValueError("what a callback may raise")


def build_model():
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, dtype="float32")]
    )


def build_language_model():
    return keras.Sequential([keras.Input((6,)), keras.layers.Embedding(20, 8), keras.layers.Dense(20, name="last")])


def main(run_dir, engine, how="well"):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 4)).astype("float32")
    y = x @ rng.normal(size=(4, 1)).astype("float32")
    launch = {} if engine == "here" else {"engine": engine, "num_workers": 2, "engine_options": {"cores_per_worker": 1}}
    model = build_model
    if how == "own":
        keras.utils.set_random_seed(0)
        model = build_model()
        model.compile("adam", "mse")
    if how in ("tokens", "chunks"):
        keras.utils.set_random_seed(0)
        model = build_language_model()
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        x = rng.integers(0, 20, (96, 6))
        y = np.roll(x, -1, axis=1)
    is_own = how in ("own", "tokens", "chunks")
    result = tfaccel.train(
        model,
        x,
        y,
        batch_size=8,
        **({} if is_own else {"optimizer": "adam", "loss": "mse"}),
        **({"plan": {"logit_chunks": 5}} if how == "chunks" else {}),
        epochs=2,
        run_dir=run_dir,
        callbacks=[Fails()] if how == "fails" else [],
        verbose=0,
        **launch,
    )
    weights = [] if not is_own else [weight.tolist() for weight in model.get_weights()]
    print(json.dumps({"result": result.to_json(), "weights": weights, "pid": os.getpid()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
