"""Cases about callbacks: which hooks are called, when, and with which logs."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_comparison import Api, same_as_keras

ROWS = np.random.default_rng(0)
X = ROWS.normal(size=(24, 3)).astype("float32")
Y = (X @ np.array([[1.0], [-2.0], [0.5]]) + 0.1 * ROWS.normal(size=(24, 1))).astype("float32")
# The last of the three batches is smaller. It needs another trace, so only cases about batches use it.
UNEVEN = (X[:22], Y[:22])
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": False}


def linear(api: Api, optimizer: Any = "sgd", **compile_options: Any) -> keras.Model:
    with api.scope():
        return compiled(optimizer() if callable(optimizer) else optimizer, **compile_options)


def compiled(optimizer: Any = "sgd", **compile_options: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae"], **compile_options)
    return model


class Recorder(keras.callbacks.Callback):
    """Records each hook call: name, index and logs."""

    def __init__(self, *, stop_at: tuple[str, int] | None = None) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self.stop_at = stop_at

    def note(self, name: str, index: int | None, logs: Any) -> None:
        kept = {k: (np.asarray(v).shape if k == "outputs" else float(v)) for k, v in (logs or {}).items()}
        self.calls.append([name, index, kept])
        if self.stop_at == (name, index):
            self.model.stop_training = True

    def on_epoch_begin(self, epoch, logs=None):
        self.note("epoch_begin", epoch, logs)

    def on_epoch_end(self, epoch, logs=None):
        self.note("epoch_end", epoch, logs)

    def on_train_begin(self, logs=None):
        self.note("train_begin", None, logs)

    def on_train_end(self, logs=None):
        self.note("train_end", None, logs)

    def on_test_begin(self, logs=None):
        self.note("test_begin", None, logs)

    def on_test_end(self, logs=None):
        self.note("test_end", None, logs)

    def on_predict_begin(self, logs=None):
        self.note("predict_begin", None, logs)

    def on_predict_end(self, logs=None):
        self.note("predict_end", None, logs)


class BatchRecorder(Recorder):
    """Records batch hooks as well."""

    def on_train_batch_begin(self, batch, logs=None):
        self.note("train_batch_begin", batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        self.note("train_batch_end", batch, logs)

    def on_test_batch_begin(self, batch, logs=None):
        self.note("test_batch_begin", batch, logs)

    def on_test_batch_end(self, batch, logs=None):
        self.note("test_batch_end", batch, logs)

    def on_predict_batch_begin(self, batch, logs=None):
        self.note("predict_batch_begin", batch, logs)

    def on_predict_batch_end(self, batch, logs=None):
        self.note("predict_batch_end", batch, logs)


def after(model: keras.Model, history: Any, *more: Any) -> list[Any]:
    return [history.history, history.epoch, model.get_weights(), int(model.optimizer.iterations.numpy()), *more]


@same_as_keras("none", "one_device", "mirrored_1", "mirrored_2")
def batch_hooks(api: Api) -> Any:
    model, recorder = linear(api), BatchRecorder()
    history = api.fit(model, *UNEVEN, epochs=2, validation_data=(X[:10], Y[:10]), callbacks=[recorder], **OPTIONS)
    result = api.evaluate(model, *UNEVEN, batch_size=8, callbacks=[recorder], return_dict=True)
    predictions = api.predict(model, X, batch_size=8, callbacks=[recorder])
    return after(model, history, recorder.calls, result, predictions, history is model.history, history.params)


@same_as_keras()
def epoch_hooks(api: Api) -> Any:
    model, recorder = linear(api), Recorder()
    history = api.fit(model, X, Y, epochs=2, validation_data=(X[:16], Y[:16]), callbacks=recorder, **OPTIONS)
    api.evaluate(model, X, Y, callbacks=recorder)
    api.predict(model, X, callbacks=recorder)
    return after(model, history, recorder.calls, recorder.params)


@same_as_keras()
def window_hooks_see_the_last_batch(api: Api) -> Any:
    model, recorder = api.reused(compiled), BatchRecorder()
    recorder.tfaccel_windows = True
    history = api.fit(model, *UNEVEN, epochs=2, callbacks=[recorder], **OPTIONS)
    ends = [call for call in recorder.calls if call[0] == "train_batch_end" and call[1] == 2]
    return after(model, history, ends)


class Asker(keras.callbacks.Callback):
    """Asks the model what it does on data of its own, some of which leave replicas without rows."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Any] = []

    def on_epoch_end(self, epoch, logs=None):
        model, weights = self.model, np.linspace(0.5, 2, 7).astype("float32")
        dataset = tf.data.Dataset.from_tensor_slices((X[:7], Y[:7], weights)).batch(3)
        self.answers += [
            float(model.optimizer.learning_rate),
            int(model.optimizer.iterations),
            model.evaluate(X[:7], Y[:7], batch_size=3, verbose=0),
            model.evaluate(dataset, verbose=0, return_dict=True),
            model.evaluate(X[:1], Y[:1], verbose=0),
            model.test_on_batch(X[:7], Y[:7], weights),
            model.predict(X[:7], verbose=0),
            model.predict_on_batch(X[:7]),
            model.layers[0].predict_on_batch(X[:7]),
            model.fit(X[:7], Y[:7], batch_size=4, shuffle=False, verbose=0).history,
        ]


@same_as_keras("none", "mirrored_2")
def questions_of_callbacks(api: Api) -> Any:
    asker = Asker()
    with api.scope():
        model = keras.Sequential([compiled(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    return after(model, api.fit(model, X, Y, epochs=2, callbacks=[asker], **OPTIONS), asker.answers)


@same_as_keras()
def lambda_callback(api: Api) -> Any:
    model, seen = api.reused(compiled), []
    callback = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append((epoch, sorted(logs))),
        on_train_batch_end=lambda batch, logs: seen.append((batch, float(logs["loss"]))),
    )
    return after(model, api.fit(model, X, Y, epochs=2, callbacks=[callback], **OPTIONS), seen)


@same_as_keras()
def callback_list(api: Api) -> Any:
    model, recorder = api.reused(compiled), BatchRecorder()
    callbacks = keras.callbacks.CallbackList([recorder], add_history=True, model=model, epochs=7, steps=5)
    history = api.fit(model, X, Y, epochs=2, callbacks=callbacks, **OPTIONS)
    return after(model, history, recorder.calls, history.params)


@same_as_keras()
def stop_in_batch_hook(api: Api) -> Any:
    model, recorder = api.reused(compiled), BatchRecorder(stop_at=("train_batch_end", 1))
    history = api.fit(model, X, Y, epochs=3, validation_data=(X, Y), callbacks=[recorder], **OPTIONS)
    return after(model, history, recorder.calls)


@same_as_keras()
def stop_in_epoch_hook(api: Api) -> Any:
    model, recorder = api.reused(compiled), Recorder(stop_at=("epoch_end", 1))
    history = api.fit(model, X, Y, epochs=4, callbacks=[recorder], **OPTIONS)
    again = api.fit(model, X, Y, epochs=1, **OPTIONS)
    return after(model, history, recorder.calls, again.history)


@same_as_keras()
def initial_epoch(api: Api) -> Any:
    model, recorder = api.reused(compiled), Recorder()
    history = api.fit(model, X, Y, epochs=5, initial_epoch=3, callbacks=[recorder], **OPTIONS)
    none = api.fit(model, X, Y, epochs=3, initial_epoch=3, **OPTIONS)
    return after(model, history, recorder.calls, none.history, none.epoch)


@same_as_keras()
def ema_is_finalized(api: Api) -> Any:
    model = linear(api, lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5))
    history = api.fit(model, X, Y, epochs=2, **OPTIONS)
    return after(model, history, api.evaluate(model, X, Y))


@same_as_keras()
def validation_frequency(api: Api) -> Any:
    model = api.reused(compiled)
    second = api.fit(model, X, Y, epochs=4, validation_data=(X, Y), validation_freq=2, **OPTIONS).history
    listed = api.fit(model, X, Y, epochs=4, validation_data=(X, Y), validation_freq=[1, 4], **OPTIONS)
    return after(model, listed, second)


@same_as_keras()
def validation_data_of_all_kinds(api: Api) -> Any:
    model, weights = api.reused(compiled), np.linspace(0.1, 2, 10).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(5)
    found = [
        api.fit(model, X, Y, validation_data=(X[:10], Y[:10], weights), **OPTIONS).history,
        api.fit(model, X, Y, validation_data=dataset, **OPTIONS).history,
        api.fit(model, X, Y, epochs=2, validation_data=dataset, validation_steps=2, **OPTIONS).history,
        api.fit(model, X, Y, validation_data=(X, Y), validation_steps=2, validation_batch_size=4, **OPTIONS).history,
        api.fit(model, X, Y, validation_split=0.3, sample_weight=np.linspace(0, 1, 24), **OPTIONS).history,
        api.fit(model, X, Y, validation_split=0.3, validation_data=(X, Y), **OPTIONS).history,
    ]
    return [found, model.get_weights()]


@same_as_keras()
def caps_of_the_configuration(api: Api) -> Any:
    import warnings

    keras.config.set_max_epochs(2)
    keras.config.set_max_steps_per_epoch(2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, recorder = api.reused(compiled), BatchRecorder()
            history = api.fit(model, X, Y, epochs=4, callbacks=[recorder], **OPTIONS)
            rows = len(api.predict(model, X, batch_size=8))
        return after(model, history, recorder.calls, rows)
    finally:
        keras.config.set_max_epochs(None)
        keras.config.set_max_steps_per_epoch(None)


@same_as_keras("none", "mirrored_2")
def steps_per_execution(api: Api) -> Any:
    model, recorder = linear(api, steps_per_execution=2), BatchRecorder()
    history = api.fit(model, X[:16], Y[:16], epochs=2, callbacks=[recorder], batch_size=4, shuffle=False)
    calls = [call for call in recorder.calls if "batch" in call[0]]
    return after(model, history, calls)
