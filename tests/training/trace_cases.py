"""Cases about changes after `compile`: as with Keras, a graph keeps the state from when it was traced."""

from collections.abc import Callable
from typing import Any

import keras
from callback_cases import BatchRecorder, linear
from input_cases import X, Y
from keras_comparison import Api, same_as_keras

same_graphs = same_as_keras("none", tolerance=0.0)


def regularized(api: Api, **compile_options: Any) -> keras.Model:
    with api.scope():
        model = keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.Dense(4, "tanh", kernel_regularizer="l2"),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", **compile_options)
    return model


def changed(api: Api, *changes: Callable[[keras.Model], None], size: int = 8, **compile_options: Any) -> Any:
    """Trains before and after each change: with batch hooks, and without them in batches of `size`."""
    model = regularized(api, **compile_options)
    options: dict[str, Any] = {"batch_size": 8, "shuffle": False, "validation_data": (X[:8], Y[:8])}
    found = [api.fit(model, X, Y, **options).history]
    for change in changes:
        change(model)
        found.append(api.fit(model, X, Y, callbacks=[BatchRecorder()], **options).history)
        found.append(api.fit(model, X, Y, **{**options, "batch_size": size}).history)
        found.append([api.evaluate(model, X, Y), api.predict(model, X)])
    return [found, model.get_weights()]


def freeze(model: keras.Model) -> None:
    model.layers[0].trainable = False


def freeze_all(model: keras.Model) -> None:
    model.trainable = False


def thaw(model: keras.Model) -> None:
    model.layers[0].trainable = True


def freeze_before(api: Api) -> keras.Model:
    model = regularized(api)
    freeze(model)
    return model


@same_graphs
def frozen_after_training(api: Api) -> Any:
    return [changed(api, freeze, thaw), changed(api, freeze, size=11)]


@same_as_keras("mirrored_2")
def frozen_after_training_of_replicas(api: Api) -> Any:
    model, options = linear(api), {"batch_size": 8, "shuffle": False}
    found = [api.fit(model, X, Y, **options).history]
    for change in (freeze, thaw):
        change(model)
        found.append(api.fit(model, X, Y, callbacks=[BatchRecorder()], **options).history)
        found.append(api.fit(model, X, Y, **options).history)
    return [found, model.get_weights()]


@same_graphs
def all_frozen_after_training(api: Api) -> Any:
    return changed(api, freeze_all, lambda model: model.compile("sgd", "mse"))


@same_graphs
def frozen_between_compile_and_training(api: Api) -> Any:
    model = freeze_before(api)
    found = [api.fit(model, X, Y, shuffle=False).history]
    thaw(model)
    return [found, api.fit(model, X, Y, shuffle=False).history, model.get_weights()]


@same_graphs
def other_batches_trace_anew(api: Api) -> Any:
    model, weights = regularized(api), X[:, 0] ** 2
    found = [api.fit(model, X, Y, batch_size=11, shuffle=False).history]
    freeze(model)
    found.append(api.fit(model, X[:20], Y[:20], batch_size=5, shuffle=False).history)
    found.append(api.fit(model, X, Y, batch_size=11, shuffle=False).history)
    thaw(model)
    found.append(api.fit(model, X[:8], Y[:8], batch_size=4, shuffle=False).history)
    found.append(api.fit(model, X, Y, sample_weight=weights, batch_size=11, shuffle=False).history)
    return [found, model.get_weights()]


@same_graphs
def functions_made_anew(api: Api) -> Any:
    def by_force(model: keras.Model) -> None:
        freeze(model)
        model.make_train_function(force=True)

    def by_none(model: keras.Model) -> None:
        thaw(model)
        model.train_function = None

    return changed(api, by_force, by_none)


@same_graphs
def frozen_while_run_eagerly(api: Api) -> Any:
    return changed(api, freeze, thaw, run_eagerly=True)


@same_graphs
def another_optimizer(api: Api) -> Any:
    def exchange(model: keras.Model) -> None:
        model.optimizer = keras.optimizers.SGD(0.0)

    return changed(api, exchange)


@same_graphs
def way_of_running_changed(api: Api) -> Any:
    class Counting(keras.layers.Layer):
        calls = 0

        def call(self, inputs: Any) -> Any:
            type(self).calls += 1
            return inputs

    model = keras.Sequential([keras.Input((3,)), Counting(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    api.fit(model, X, Y, shuffle=False)
    model.run_eagerly, calls = True, Counting.calls
    found = api.fit(model, X, Y, shuffle=False, epochs=2).history
    was_eager = [Counting.calls > calls]
    model.compile("sgd", "mse", run_eagerly=True)
    calls = Counting.calls
    return [found, was_eager, api.fit(model, X, Y, shuffle=False).history, Counting.calls > calls]
