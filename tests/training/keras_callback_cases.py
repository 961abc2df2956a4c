"""Cases about the callbacks that come with Keras."""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from callback_cases import OPTIONS, Recorder, X, Y, after, compiled, linear
from keras_comparison import Api, same_as_keras


@same_as_keras("none", "mirrored_2")
def early_stopping(api: Api) -> Any:
    model = linear(api, lambda: keras.optimizers.SGD(0.5))
    stopper = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True, start_from_epoch=1)
    history = api.fit(model, X, Y, epochs=9, validation_data=(X, Y), callbacks=[stopper], **OPTIONS)
    return after(model, history, stopper.stopped_epoch, stopper.best_epoch, float(stopper.best))


@same_as_keras("none", "mirrored_1", "mirrored_2")
def learning_rate_from_callbacks(api: Api) -> Any:
    model = linear(api, lambda: keras.optimizers.Adam(0.1))
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch else rate),
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.1, patience=1, min_delta=10.0),
    ]
    history = api.fit(model, X, Y, epochs=5, callbacks=callbacks, **OPTIONS)
    model.optimizer.learning_rate = 0.0
    weights = model.get_weights()
    api.fit(model, X, Y, **OPTIONS)
    kept = [bool(np.array_equal(a, b)) for a, b in zip(weights, model.get_weights(), strict=True)]
    return after(model, history, kept)


@same_as_keras("mirrored_2", tolerance=2e-3)
def learning_rate_under_a_loss_scale(api: Api) -> Any:
    keras.config.set_dtype_policy("mixed_float16")
    model = linear(api, lambda: keras.optimizers.Adam(0.1))
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    history = api.fit(model, X, Y, epochs=3, callbacks=[halve], **OPTIONS)
    return [history.history["learning_rate"], history.history["loss"], float(model.optimizer.dynamic_scale.numpy())]


@same_as_keras("none", "mirrored_2")
def model_checkpoint(api: Api) -> Any:
    model = api.reused(compiled)
    with tempfile.TemporaryDirectory() as folder:
        each = keras.callbacks.ModelCheckpoint(f"{folder}/e{{epoch}}-{{loss:.3f}}.weights.h5", save_weights_only=True)
        fourth = keras.callbacks.ModelCheckpoint(f"{folder}/b{{epoch}}-{{batch}}.keras", save_freq=4)
        best = keras.callbacks.ModelCheckpoint(f"{folder}/best.keras", monitor="val_mae", save_best_only=True)
        history = api.fit(model, X, Y, epochs=3, validation_data=(X, Y), callbacks=[each, fourth, best], **OPTIONS)
        files = sorted(os.listdir(folder))
        loaded = [keras.models.load_model(f"{folder}/{name}").get_weights() for name in files if "keras" in name]
    return after(model, history, files, loaded)


@same_as_keras()
def csv_logger_and_terminate_on_nan(api: Api) -> Any:
    model = linear(api, lambda: keras.optimizers.SGD(1e9))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log.csv"
        callbacks = [keras.callbacks.TerminateOnNaN(), keras.callbacks.CSVLogger(str(file))]
        history = api.fit(model, X, Y, epochs=30, callbacks=callbacks, **OPTIONS)
        lines = file.read_text().splitlines()
    return [history.epoch, [line.split(",")[0] for line in lines], len(lines[0].split(","))]


@same_as_keras("none", "mirrored_2")
def tensorboard(api: Api) -> Any:
    model = linear(api)
    with tempfile.TemporaryDirectory() as folder:
        boards = [
            keras.callbacks.TensorBoard(f"{folder}/epochs"),
            keras.callbacks.TensorBoard(f"{folder}/batches", update_freq=2, write_graph=False),
        ]
        history = api.fit(model, X, Y, epochs=2, validation_data=(X, Y), callbacks=boards, **OPTIONS)
        tags = {}
        for path in sorted(Path(folder).rglob("events*")):
            for event in tf.compat.v1.train.summary_iterator(str(path)):
                for value in event.summary.value:
                    tags.setdefault(f"{path.parent.relative_to(folder)}:{value.tag}", []).append(event.step)
    return after(model, history, {key: tags[key] for key in sorted(tags) if "keras" not in key})


@same_as_keras()
def backup_and_restore(api: Api) -> Any:
    class Interruption(Exception):
        pass

    def interrupt(epoch, logs):
        if epoch == 2:
            raise Interruption

    with tempfile.TemporaryDirectory() as folder:
        stop = keras.callbacks.LambdaCallback(on_epoch_begin=interrupt)
        with contextlib.suppress(Interruption):
            api.fit(
                linear(api, "adam"),
                X,
                Y,
                epochs=4,
                callbacks=[keras.callbacks.BackupAndRestore(folder), stop],
                **OPTIONS,
            )
        model, recorder = linear(api, "adam"), Recorder()
        backup = keras.callbacks.BackupAndRestore(folder)
        history = api.fit(model, X, Y, epochs=4, callbacks=[backup, recorder], **OPTIONS)
        return after(model, history, recorder.calls, os.path.exists(folder))


@same_as_keras()
def swap_ema_weights(api: Api) -> Any:
    model = linear(api, lambda: keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.8))
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    history = api.fit(model, X, Y, epochs=3, validation_data=(X, Y), callbacks=[swap], **OPTIONS)
    return after(model, history)
