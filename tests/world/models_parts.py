"""Parts of one's own: metrics, `fit` and `predict`, layers with optimizers, experts, low-rank and quantized weights."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from world import NUM_ROWS, adam, batches, pixels, rows, sgd, whole_numbers, world_model


class RunningMaximum(keras.metrics.Metric):
    """A metric that is no sum over rows: it is given those of all replicas."""

    def __init__(self, name: str = "running_maximum") -> None:
        super().__init__(name=name)
        self.largest = self.add_weight(shape=(), initializer="zeros", name="largest")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.largest.assign(ops.maximum(self.largest, ops.max(ops.abs(y_true - y_pred))))

    def result(self) -> Any:
        return self.largest


@world_model(lambda: batches(rows(5), rows(1, seed=3)))
def metric_that_is_no_sum() -> keras.Model:
    model = keras.Sequential([keras.Input((5,)), layers.Dense(6, activation="tanh"), layers.Dense(1)])
    model.compile(optimizer=sgd(), loss="mse", metrics=[RunningMaximum()])
    return model


class BinaryTruePositives(keras.metrics.Metric):
    """The guide's metric: a count."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(name="binary_true_positives", **kwargs)
        self.true_positives = self.add_weight(name="tp", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        values = ops.cast(ops.logical_and(ops.equal(y_true, 1), ops.greater(y_pred, 0.5)), self.dtype)
        if sample_weight is not None:
            values = ops.multiply(values, ops.cast(sample_weight, self.dtype)[:, None])
        self.true_positives.assign_add(ops.sum(values))

    def result(self) -> Any:
        return self.true_positives


class OwnScaling(keras.Sequential):
    """A model that scales what it is given in its own `fit`, `evaluate` and `predict`."""

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        return super().fit(x / 255.0, *args, **kwargs)

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        return super().evaluate(x / 255.0, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return super().predict(x / 255.0, *args, **kwargs)


@world_model(lambda: batches(255 * pixels(5), pixels(1, seed=3).round()))
def fit_of_its_own() -> keras.Model:
    model = OwnScaling([keras.Input((5,)), layers.Dense(6, activation="tanh"), layers.Dense(1, activation="sigmoid")])
    model.compile(optimizer=adam(), loss="binary_crossentropy", metrics=[BinaryTruePositives()])
    return model


def dense_stack() -> keras.Model:
    return keras.Sequential(
        [keras.Input((8,)), layers.Dense(8, activation="relu"), layers.EinsumDense("bi,io->bo", 4), layers.Dense(3)]
    )


@world_model(lambda: batches(rows(8), whole_numbers(below=3)))
def lora() -> keras.Model:
    model = dense_stack()
    for layer in model.layers[:2]:
        layer.enable_lora(2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=adam(), loss=loss, metrics=["accuracy"])
    return model


@world_model(lambda: batches(rows(8), whole_numbers(below=3)), not_built="attr 'T' of int8 is not in the list")
def quantized_with_lora() -> keras.Model:
    """int8 weights that are frozen, and low-rank ones that are trained."""
    model = dense_stack()
    warnings.filterwarnings("ignore", message="Layer InputLayer does not have a `quantize` method")  # Keras's own
    model.quantize("int8")
    for layer in model.layers[:2]:
        layer.enable_lora(2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=adam(), loss=loss)
    return model


class ForwardForwardLayer(layers.Layer):
    """A layer with an optimizer of its own, trained without what comes behind it."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.dense, self.optimizer = layers.Dense(units, activation="relu"), sgd(0.01)

    def call(self, x: Any) -> Any:
        return self.dense(x / (ops.norm(x, axis=1, keepdims=True) + 1e-4))

    def trained(self, positive: Any, negative: Any) -> tuple[Any, Any, Any]:
        with tf.GradientTape() as tape:
            goodness = [ops.mean(ops.square(self.call(x)), axis=1) for x in (positive, negative)]
            loss = ops.mean(ops.log(1 + ops.exp(ops.concatenate([1.5 - goodness[0], goodness[1] - 1.5]))))
        weights = self.dense.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return ops.stop_gradient(self.call(positive)), ops.stop_gradient(self.call(negative)), loss


class ForwardForwardNetwork(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.stack = [ForwardForwardLayer(6), ForwardForwardLayer(4)]
        self.loss_var = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_var]

    def call(self, x: Any) -> Any:
        for layer in self.stack:
            x = layer(x)
        return x

    def train_step(self, data: Any) -> Any:
        positive, negative = data
        for layer in self.stack:
            positive, negative, loss = layer.trained(positive, negative)
            self.loss_var.update_state(loss)
        return {"loss": self.loss_var.result()}


@world_model(lambda: batches(rows(5), rows(5, seed=1)), evaluates=False)
def forward_forward() -> keras.Model:
    model = ForwardForwardNetwork()
    model.compile(optimizer=sgd(), loss="mse", jit_compile=False)
    return model


class SwitchRouter(layers.Layer):
    """Sends each row to one expert, and adds a loss that balances the experts over the whole batch."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.route = layers.Dense(num_experts, activation="softmax")
        self.experts = [layers.Dense(4, activation="relu") for _ in range(num_experts)]

    def call(self, inputs: Any) -> Any:
        probabilities = self.route(inputs)
        chosen = ops.one_hot(ops.argmax(probabilities, axis=1), self.num_experts)
        density, proxy = ops.mean(chosen, axis=0), ops.mean(probabilities, axis=0)
        self.add_loss(0.1 * ops.mean(proxy * density) * self.num_experts**2)
        outputs = ops.stack([expert(inputs) for expert in self.experts], axis=1)
        return ops.sum(outputs * (chosen * probabilities)[:, :, None], axis=1)


@world_model(lambda: batches(rows(5), rows(1, seed=3)), refused="SwitchRouter|switch_router")
def switch_transformer() -> keras.Model:
    model = keras.Sequential([keras.Input((5,)), SwitchRouter(3), layers.Dense(1)])
    model.compile(optimizer=sgd(), loss="mse")
    return model


@world_model(lambda: {**batches(rows(5), rows(2, seed=3)), "sample_weight": np.linspace(0, 2, NUM_ROWS)})
def accumulation_and_averages() -> keras.Model:
    """Gradients that are collected over two steps, weights that are averaged, a schedule, clipping."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, decay_steps=2, decay_rate=0.9)
    optimizer = keras.optimizers.SGD(
        schedule, gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.9, global_clipnorm=0.1
    )
    model = keras.Sequential([keras.Input((5,)), layers.Dense(6, activation="tanh"), layers.Dense(2)])
    model.compile(optimizer=optimizer, loss="mse", metrics=[keras.metrics.R2Score()])
    return model
