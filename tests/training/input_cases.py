"""Cases about inputs: all types of data that `Model.fit`, `evaluate` and `predict` accept."""

import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from callback_cases import BatchRecorder, Recorder
from keras_comparison import Api, same_as_keras

ROWS = np.random.default_rng(3)
X = ROWS.normal(size=(22, 3)).astype("float32")
Y = (X @ np.array([[1.0], [-2.0], [0.5]])).astype("float32")
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": False}


def linear() -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse")
    return model


def dataset(batch: int = 8, **options: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch, **options)


def unknown(data: tf.data.Dataset) -> tf.data.Dataset:
    return data.apply(tf.data.experimental.assert_cardinality(tf.data.UNKNOWN_CARDINALITY))


def trained(api: Api, *arguments: Any, epochs: int = 2, **options: Any) -> list[Any]:
    model, recorder = api.reused(linear), BatchRecorder()
    history = api.fit(model, *arguments, epochs=epochs, callbacks=[recorder], **{"shuffle": False, **options})
    return [history.history, [call[:2] for call in recorder.calls], model.get_weights()]


@same_as_keras()
def arrays_of_all_kinds(api: Api) -> Any:
    return [
        trained(api, tf.constant(X), Y.astype("float64"), **OPTIONS),
        trained(api, (X * 2).astype("int32"), Y[:, 0].astype("int64")),
        trained(api, X, Y, steps_per_epoch=4),
    ]


@same_as_keras("none", "mirrored_2")
def data_that_runs_out(api: Api) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [
            trained(api, X, Y, epochs=4, steps_per_epoch=2, **OPTIONS),
            trained(api, dataset(), epochs=4, steps_per_epoch=2),
            trained(api, dataset(4), epochs=3, steps_per_epoch=4),
            trained(api, dataset().repeat(2), epochs=3, steps_per_epoch=4),
        ]
    return [found, any("ran out of data" in str(w.message) or "data ended" in str(w.message) for w in caught)]


@same_as_keras("none", "mirrored_2")
def datasets(api: Api) -> Any:
    return [
        trained(api, dataset()),
        trained(api, dataset(drop_remainder=True)),
        trained(api, dataset().repeat(), steps_per_epoch=5),
        trained(api, dataset(11).cache().prefetch(2), epochs=3),
    ]


@same_as_keras()
def unknown_cardinality(api: Api) -> Any:
    model, data = api.reused(linear), dataset().filter(lambda x, y: True)
    with warnings.catch_warnings():  # Keras warns when such data run out
        warnings.simplefilter("ignore")
        api.fit(api.reused(linear), ((X[i : i + 5], Y[i : i + 5], None) for i in range(0, 20, 5)))
        history = api.fit(model, data, epochs=2).history
        return [history["loss"][:1], api.evaluate(model, X, Y) > 0, len(api.predict(model, data.map(lambda x, y: x)))]


@same_as_keras()
def weights_and_class_weights(api: Api) -> Any:
    labels = np.arange(22) % 3
    weights = {0: 1.0, 1: 3.0, 2: 0.25}
    found = []
    for data in ((X, labels), (tf.data.Dataset.from_tensor_slices((X, labels)).batch(8),)):
        with api.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, activation="softmax")])
            model.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
        options = OPTIONS if len(data) == 2 else {"shuffle": False}
        found.append([api.fit(model, *data, class_weight=weights, epochs=2, **options).history, model.get_weights()])
    row_weights = np.linspace(0, 2, 22).astype("float32")
    found.append(trained(api, X, Y, sample_weight=row_weights, **OPTIONS))
    found.append(trained(api, tf.data.Dataset.from_tensor_slices((X, Y, row_weights)).batch(8)))
    return found


def two_heads(api: Api) -> keras.Model:
    with api.scope():
        first, second = keras.Input((3,), name="a"), keras.Input((2,), name="b")
        joined = keras.layers.Concatenate()([first, second])
        outputs = {"u": keras.layers.Dense(1, name="u")(joined), "v": keras.layers.Dense(2, name="v")(joined)}
        model = keras.Model({"a": first, "b": second}, outputs)
        model.compile(
            "sgd",
            {"u": "mse", "v": "mae"},
            loss_weights={"u": 1.0, "v": 0.5},
            metrics={"u": ["mae"]},
            weighted_metrics={"v": ["mse"]},
        )
    return model


@same_as_keras()
def nested_inputs_and_outputs(api: Api) -> Any:
    model, x, y = two_heads(api), {"a": X, "b": X[:, :2]}, {"u": Y, "v": X[:, 1:]}
    weights = {"u": np.linspace(0, 1, 22), "v": np.linspace(1, 3, 22)}
    history = api.fit(model, x, y, sample_weight=weights, epochs=2, batch_size=11, shuffle=False).history
    return [
        history,
        model.get_weights(),
        api.evaluate(model, x, y, batch_size=11, sample_weight=weights),
        api.evaluate(model, x, y, batch_size=11, return_dict=True),
        api.predict(model, x, batch_size=8),
        api.predict(model, tf.data.Dataset.from_tensor_slices(x).batch(5)),
    ]


@same_as_keras()
def list_of_outputs(api: Api) -> Any:
    with api.scope():
        inputs = [keras.Input((3,)), keras.Input((3,))]
        model = keras.Model(
            inputs, [keras.layers.Dense(2, name="one")(inputs[0]), keras.layers.Dense(1, name="two")(inputs[1])]
        )
        model.compile("sgd", ["mse", "mae"])
    history = api.fit(model, [X, X], [X[:, :2], Y], **OPTIONS).history
    return [history, api.predict(model, [X, X], batch_size=8), api.evaluate(model, [X, X], [X[:, :2], Y])]


@same_as_keras("none", "mirrored_2")
def generators(api: Api) -> Any:
    def batches(passes: int, with_none: bool):
        for _ in range(passes):
            for i in range(0, 20, 5):
                yield (X[i : i + 5], Y[i : i + 5], None) if with_none else (X[i : i + 5], Y[i : i + 5])

    model = api.reused(linear)
    return [
        trained(api, batches(2, False), steps_per_epoch=4),
        trained(api, batches(2, True), steps_per_epoch=4),
        api.evaluate(model, batches(1, False), steps=3),
        api.predict(model, ((X[i : i + 4],) for i in range(0, 20, 4)), steps=5),
    ]


class Sequence(keras.utils.PyDataset):
    def __init__(self, calls: list[str], **options: Any) -> None:
        super().__init__(**options)
        self.calls = calls

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return X[index * 5 : index * 5 + 5], Y[index * 5 : index * 5 + 5]

    def on_epoch_begin(self) -> None:
        self.calls.append("begin")

    def on_epoch_end(self) -> None:
        self.calls.append("end")


@same_as_keras("none", "mirrored_2")
def py_datasets(api: Api) -> Any:
    calls: list[str] = []
    threaded = Sequence([], workers=2, max_queue_size=3)
    model = api.reused(linear)
    return [
        trained(api, Sequence(calls)),
        calls,
        trained(api, threaded),
        trained(api, Sequence([]), epochs=3, validation_data=Sequence([])),
        api.evaluate(model, Sequence([])),
        api.predict(model, Sequence([])),
    ]


@same_as_keras()
def sparse_batches(api: Api) -> Any:
    with api.scope():
        sparse = keras.Sequential([keras.Input((4,), sparse=True), keras.layers.Dense(1)])
        sparse.compile("sgd", "mse")
    dense = (np.random.default_rng(0).uniform(size=(10, 4)) > 0.5).astype("float32")
    rows = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(dense), Y[:10])).batch(4)
    return [
        api.fit(sparse, rows, epochs=2, shuffle=False).history,
        api.evaluate(sparse, rows),
        api.predict(sparse, rows),
    ]


@same_as_keras()
def texts(api: Api) -> Any:
    words = np.array([["a b"], ["b c d"], ["a"], ["d d"], ["c a"]])
    with api.scope():
        lookup = keras.layers.TextVectorization(output_sequence_length=3, vocabulary=["a", "b", "c", "d"])
        inputs = keras.Input((1,), dtype="string")
        embedded = keras.layers.Embedding(6, 2)(lookup(inputs))
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(embedded)))
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((words, Y[:5])).batch(3)
    history = api.fit(model, tf.constant(words), Y[:5], epochs=2, batch_size=2, shuffle=False).history
    return [
        history,
        api.fit(model, data, shuffle=False).history,
        api.predict(model, tf.constant(words), batch_size=3),
        model.get_weights(),
    ]


@same_as_keras()
def refused(api: Api) -> Any:
    def error(call: Any) -> bool:
        try:
            call()
        except Exception:
            return True
        return False

    with api.scope():
        model = linear()  # a separate model, so that the failures below do not affect other cases
    uncompiled = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    heads, x, y = two_heads(api), {"a": X, "b": X[:, :2]}, {"u": Y, "v": X[:, 1:]}
    return [
        error(lambda: api.fit(uncompiled, X, Y)),
        error(lambda: api.evaluate(uncompiled, X, Y)),
        error(lambda: api.fit(model, X, Y[:5])),
        error(lambda: api.fit(model, dataset(), Y)),
        error(lambda: api.fit(model, dataset(), sample_weight=Y)),
        error(lambda: api.fit(model, dataset(), validation_split=0.2)),
        error(lambda: api.fit(model, X, Y, sample_weight=np.ones(22), class_weight={0: 1.0})),
        error(lambda: api.fit(heads, x, y, class_weight={0: 1.0})),
        error(lambda: api.fit(model, X, Y, validation_data=(X, Y), validation_freq="2")),
        error(lambda: api.fit(model, "text", Y)),
        error(lambda: api.fit(model)),
        error(lambda: api.fit(model, X[:0], Y[:0])),
        error(lambda: api.fit(model, dataset().take(0), shuffle=False)),
        error(lambda: api.fit(model, iter(()), steps_per_epoch=1)),
        error(lambda: api.fit(model, X[:, :2], Y)),
        error(lambda: api.predict(model, X[:0])),
        error(lambda: api.fit(model, (row for row in ()))),
        error(lambda: api.fit(model, X, Y, steps_per_epoch=0)),
        error(lambda: api.fit(model, X, Y, callbacks=["tensorboard"])),
        error(lambda: api.fit(model, X, Y, unknown_argument=1)),
    ]


@same_as_keras()
def predictions_of_all_kinds(api: Api) -> Any:
    with api.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    recorder = Recorder()
    return [
        api.predict(model, X),
        api.predict(model, X, batch_size=7, callbacks=[recorder]),
        api.predict(model, X, batch_size=7, steps=2),
        api.predict(model, X[:1]),
        api.predict(model, tf.data.Dataset.from_tensor_slices(X).batch(4).repeat(), steps=7),
        api.predict(model, tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)),
        recorder.calls,
    ]
