"""Cases about epochs without a strategy: the batches of each, bit for bit, and the executions that run them."""

import random
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from callback_cases import BatchRecorder, compiled
from input_cases import X, Y
from keras_comparison import Api, same_as_keras

same_batches = same_as_keras("none", tolerance=0.0)


def dataset() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y))


def trained(api: Api, *data: Any, **options: Any) -> list[Any]:
    model = api.reused(compiled)
    history = api.fit(model, *data, **{"epochs": 3, **options}).history
    return [history, model.get_weights()]


@same_batches
def shuffled_arrays(api: Api) -> Any:
    tf.random.uniform([2])  # the order must depend on the global seed only, not on earlier draws
    found = [
        trained(api, X, Y, batch_size=4),
        trained(api, X, Y, batch_size=4, shuffle="batch"),
        trained(api, X, Y, batch_size=4, steps_per_epoch=4),
    ]
    tf.random.set_seed(0)
    return [*found, trained(api, X, Y, batch_size=11), tf.random.uniform([3]).numpy()]


@same_batches
def shuffled_datasets(api: Api) -> Any:
    seeded = dataset().shuffle(22, seed=1).batch(4)
    model = api.reused(compiled)
    found = [
        trained(api, seeded, validation_data=seeded),
        api.evaluate(model, seeded),
        trained(api, seeded, epochs=2),
        api.predict(model, seeded),
        trained(api, dataset().shuffle(22, seed=1, reshuffle_each_iteration=False).batch(4).prefetch(2)),
        trained(api, dataset().shuffle(22).batch(4), steps_per_epoch=4),
        trained(api, dataset().shuffle(22).batch(4).repeat(), steps_per_epoch=5),
    ]
    unknown = dataset().shuffle(22, seed=1).batch(4).filter(lambda x, y: tf.reduce_sum(x) > -1.0)
    return [*found, trained(api, unknown, validation_data=unknown), trained(api, seeded, steps_per_epoch=8)]


@same_batches
def random_transformations(api: Api) -> Any:
    strength, generator = tf.Variable(1.0), tf.random.Generator.from_seed(5)
    data = dataset().batch(4).map(lambda x, y: (x * strength + tf.random.normal(tf.shape(x)), y))
    own = dataset().batch(4).map(lambda x, y: (x + generator.normal(tf.shape(x)), y))
    rises = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: strength.assign_add(1.0))
    return [trained(api, data), trained(api, data, callbacks=[rises]), trained(api, own)]


class Batches(keras.utils.PyDataset):
    """Records when epochs begin and end."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[str] = []

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return X[4 * index : 4 * index + 4], Y[4 * index : 4 * index + 4]

    def on_epoch_begin(self) -> None:
        self.calls.append("begin")

    def on_epoch_end(self) -> None:
        self.calls.append("end")


@same_batches
def batches_by_python_code(api: Api) -> Any:
    random.seed(2)
    model, found, sets = api.reused(compiled), [], [Batches(), Batches(), Batches(workers=2), Batches()]
    found.append(trained(api, sets[0], validation_data=sets[1]))
    found.append(trained(api, sets[0], steps_per_epoch=3))
    found.append(trained(api, sets[2], epochs=2))
    found += [api.evaluate(model, sets[3]), api.predict(model, sets[3])]
    return [found, [one.calls for one in sets]]


@same_batches
def stopped_epochs_of_python_code(api: Api) -> Any:
    batches, recorder = Batches(workers=2), BatchRecorder(stop_at=("train_batch_end", 1))
    return [trained(api, batches, callbacks=[recorder]), batches.calls, recorder.calls]


def of_executions(api: Api, steps_per_execution: int) -> Any:
    with api.scope():
        model = compiled(steps_per_execution=steps_per_execution)
    recorder = BatchRecorder()
    options = {"callbacks": [recorder], "batch_size": 4}
    found = [
        api.fit(model, X, Y, epochs=2, validation_data=(X[:10], Y[:10]), **options).history,
        api.fit(model, X, Y, epochs=3, steps_per_epoch=4, **options).history,
        api.fit(model, X, Y, epochs=2).history,
        api.fit(model, dataset().batch(4), epochs=2, steps_per_epoch=4, callbacks=[recorder]).history,
        api.evaluate(model, X, Y, **options),
        api.evaluate(model, X, Y, steps=4, **options),
        api.predict(model, X, **options),
        api.predict(model, X, steps=4, **options),
        api.predict(model, dataset().batch(4), callbacks=[recorder]),
    ]
    return [found, recorder.calls, model.get_weights()]


@same_batches
def executions_of_three_steps(api: Api) -> Any:
    return of_executions(api, 3)


@same_batches
def executions_longer_than_an_epoch(api: Api) -> Any:
    return of_executions(api, 8)
