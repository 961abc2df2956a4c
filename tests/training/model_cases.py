"""Cases about models: subclassed, with custom steps, losses and metrics, frozen, recompiled, trained again."""

import gc
import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_comparison import Api, same_as_keras

ROWS = np.random.default_rng(5)
X = ROWS.normal(size=(24, 3)).astype("float32")
Y = (X @ np.array([[1.0], [-2.0], [0.5]])).astype("float32")
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": False}


def trained(api: Api, build: Any, *, num_rows: int = 24, epochs: int = 2, **options: Any) -> list[Any]:
    """History, evaluation, predictions and weights of a model built in the scope.

    With 22 rows, the last of three batches is smaller, which needs another trace.
    """
    with api.scope():
        model = build()
    x, y = X[:num_rows], Y[:num_rows]
    history = api.fit(model, x, y, epochs=epochs, validation_data=(x, y), **{**OPTIONS, **options}).history
    evaluation = api.evaluate(model, x, y, batch_size=8, return_dict=True)
    return [history, evaluation, api.predict(model, x, batch_size=8), model.get_weights()]


def compiled(model: keras.Model, **options: Any) -> keras.Model:
    model.compile(**{"optimizer": keras.optimizers.SGD(0.1, momentum=0.9), "loss": "mse", **options})
    return model


def dense(**options: Any) -> keras.Model:
    layers = [keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
    return compiled(keras.Sequential(layers), **options)


class Subclassed(keras.Model):
    """A model that is only built when it is called on data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.last(self.first(inputs))


class OwnSteps(Subclassed):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.metrics[0].update_state(loss)
        return {"loss": self.metrics[0].result()}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        for metric in self.metrics:
            metric.update_state(y, y_pred) if metric.name != "loss" else metric.update_state(
                self.compute_loss(x, y, y_pred)
            )
        return {metric.name: metric.result() for metric in self.metrics}

    def predict_step(self, data):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return {"twice": 2 * self(x, training=False), "ones": tf.ones_like(x[:, 0])}


class OwnLoss(Subclassed):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred, sample_weight) + 0.1 * keras.ops.mean(keras.ops.square(y_pred))

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**results, "constant": 3.0}


@same_as_keras("none", "mirrored_2")
def unbuilt_model(api: Api) -> Any:
    return trained(api, lambda: compiled(Subclassed(), metrics=["mae"]), num_rows=22)


@same_as_keras("none", "mirrored_2")
def own_steps(api: Api) -> Any:
    return trained(api, lambda: compiled(OwnSteps()), num_rows=22)


@same_as_keras("none", "mirrored_2")
def own_loss_and_metric_results(api: Api) -> Any:
    return trained(api, lambda: compiled(OwnLoss(), metrics=["mae"]), num_rows=22)


@same_as_keras()
def eager(api: Api) -> Any:
    return trained(api, lambda: dense(run_eagerly=True, metrics=["mae"]))


@same_as_keras("mirrored_1")
def compiled_by_xla(api: Api) -> Any:
    return trained(api, lambda: dense(jit_compile=True, metrics=["mae"]))


@same_as_keras()
def steps_per_execution(api: Api) -> Any:
    return trained(api, lambda: dense(steps_per_execution=5), num_rows=22)


@same_as_keras()
def optimizer_of_several(api: Api) -> Any:
    def build(**options):
        layers = {".*/last/.*": keras.optimizers.Adam(0.05, **options)}
        by_layer = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1, clipnorm=0.5, **options), layers)
        last = keras.layers.Dense(1, name="last")
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), last], name="model")
        return compiled(model, optimizer=keras.optimizers.MultiOptimizer(by_layer))

    return [trained(api, build), trained(api, lambda: build(gradient_accumulation_steps=2))]


@same_as_keras()
def loss_reductions(api: Api) -> Any:
    weights = {"sample_weight": np.linspace(0, 2, 22).astype("float32"), "num_rows": 22}
    return [
        trained(
            api,
            lambda: dense(loss=keras.losses.MeanSquaredError(reduction="sum"), optimizer=keras.optimizers.SGD(0.01)),
            epochs=1,
            num_rows=22,
        ),
        trained(
            api,
            lambda: dense(loss=keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")),
            epochs=1,
            **weights,
        ),
    ]


@same_as_keras()
def only_added_losses(api: Api) -> Any:
    class Added(Subclassed):
        def call(self, inputs):
            outputs = super().call(inputs)
            self.add_loss(keras.ops.mean(keras.ops.square(outputs - 1.0)))
            return outputs

    def build():
        model = Added()
        model.compile(keras.optimizers.SGD(0.1))
        return model

    with api.scope():
        model = build()
    history = api.fit(model, X[:22], epochs=2, **OPTIONS).history
    return [history, api.evaluate(model, X[:22], batch_size=8), model.get_weights()]


def mean_difference(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.abs(y_true - y_pred))


@same_as_keras()
def metrics_of_many_kinds(api: Api) -> Any:
    x, labels = X[:22], (Y[:22] > 0).astype("float32")
    outside = keras.metrics.MeanAbsoluteError(name="outside")
    with api.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
        metrics = [
            "accuracy",
            keras.metrics.AUC(name="auc"),
            keras.metrics.Precision(name="precision"),
            outside,
            keras.metrics.F1Score(threshold=0.5),
            keras.metrics.R2Score(),
            mean_difference,
        ]
        model.compile("sgd", "binary_crossentropy", metrics=metrics, weighted_metrics=["mse"])
    history = api.fit(model, x, labels, epochs=2, **OPTIONS).history
    return [history, api.evaluate(model, x, labels, batch_size=8)]


@same_as_keras("none", "mirrored_2")
def frozen_and_compiled_again(api: Api) -> Any:
    with api.scope():
        model = dense()
    first = api.fit(model, X, Y, **OPTIONS).history
    with api.scope():
        model.layers[0].trainable = False
        model.compile(keras.optimizers.Adam(0.1), "mae", metrics=["mse"])
    frozen = model.layers[0].get_weights()
    second = api.fit(model, X, Y, epochs=2, **OPTIONS).history
    same = [bool(np.array_equal(a, b)) for a, b in zip(frozen, model.layers[0].get_weights(), strict=True)]
    with api.scope():
        model.layers[0].trainable = True
        model.compile("sgd", "mse")
    return [first, second, same, api.fit(model, X, Y, **OPTIONS).history, model.get_weights()]


@same_as_keras("mirrored_3")
def frozen_weights_stay(api: Api) -> Any:
    with api.scope():
        model = dense()
        model.layers[0].trainable = False
        compiled(model)
    frozen = model.layers[0].get_weights()
    api.fit(model, X, Y, epochs=3, **OPTIONS)
    return [bool(np.array_equal(a, b)) for a, b in zip(frozen, model.layers[0].get_weights(), strict=True)]


@same_as_keras()
def nothing_to_train(api: Api) -> Any:
    import warnings

    with api.scope():
        model = dense()
        model.trainable = False
        compiled(model, metrics=["mae"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [api.fit(model, X, Y, epochs=2, **OPTIONS).history, model.get_weights()]


@same_as_keras("none", "mirrored_2")
def trained_again_and_again(api: Api) -> Any:
    traces: list[int] = []

    class Counting(keras.layers.Layer):
        def call(self, inputs):
            traces.append(1)
            return inputs

    with api.scope():
        inputs = keras.Input((3,))
        model = compiled(keras.Model(inputs, keras.layers.Dense(1)(Counting()(inputs))))
    found, counts = [], []
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    for _ in range(3):
        found.append(api.fit(model, X, Y, **OPTIONS).history)
        found.append(api.fit(model, data, shuffle=False).history)
        found.append(api.evaluate(model, X, Y, batch_size=8))
        found.append(api.predict(model, X, batch_size=8))
        counts.append(len(traces))
    return [found, counts[2] == counts[1] == counts[0], model.get_weights()]


@same_as_keras("none", "mirrored_2")
def model_is_freed(api: Api) -> Any:
    with api.scope():
        model = dense()
    api.fit(model, X, Y, **OPTIONS)
    api.predict(model, X)
    reference = weakref.ref(model)
    del model
    keras.utils.clear_session()
    gc.collect()
    return reference() is None


@same_as_keras()
def saved_and_loaded_between(api: Api) -> Any:
    import tempfile

    with api.scope():
        model = dense(optimizer="adam")
    api.fit(model, X, Y, **OPTIONS)
    with tempfile.TemporaryDirectory() as folder, api.scope():
        model.save(f"{folder}/model.keras")
        loaded = keras.models.load_model(f"{folder}/model.keras")
    copied = keras.models.clone_model(loaded)
    history = api.fit(loaded, X, Y, epochs=2, **OPTIONS).history
    return [history, loaded.get_weights(), len(copied.weights)]
