"""What Keras's guides show: endpoints, added losses, several outputs, distillation."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops
from world import adam, batches, image_classes, pixels, rows, sgd, whole_numbers, world_model


class LogisticEndpoint(layers.Layer):
    """Takes targets and weights as inputs; adds the loss and updates a metric of its own."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name=name)
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        self.accuracy_metric = keras.metrics.BinaryAccuracy(name="endpoint_accuracy")

    def call(self, logits: Any, targets: Any = None, sample_weight: Any = None) -> Any:
        if targets is not None:
            self.add_loss(self.loss_fn(targets, logits, sample_weight))
            self.accuracy_metric.update_state(targets, logits, sample_weight)
        return ops.softmax(logits)


@world_model(lambda: batches({"inputs": rows(3), "targets": pixels(4).round()}))
def endpoint_layer() -> keras.Model:
    inputs, targets = keras.Input((3,), name="inputs"), keras.Input((4,), name="targets")
    logits = layers.Dense(4)(inputs)
    predictions = LogisticEndpoint(name="predictions")(logits, targets)
    model = keras.Model(inputs={"inputs": inputs, "targets": targets}, outputs=predictions)
    model.compile(optimizer=adam())
    return model


class ActivityAndSparsity(layers.Layer):
    """Adds a penalty on its inputs, one number and one for each row, and tracks it."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = keras.metrics.Mean(name="activity")

    def call(self, inputs: Any) -> Any:
        self.add_loss(0.1 * ops.mean(ops.square(inputs)))
        self.add_loss(0.01 * ops.sum(ops.abs(inputs), axis=1))
        self.tracker.update_state(ops.mean(ops.abs(inputs), axis=1))
        return inputs


@world_model(lambda: batches(rows(5), rows(1, seed=3)))
def add_loss_and_add_metric() -> keras.Model:
    inputs = keras.Input((5,))
    x = layers.Dense(6, activation="relu", activity_regularizer="l2", kernel_regularizer="l1")(inputs)
    model = keras.Model(inputs, layers.Dense(1)(ActivityAndSparsity()(x)))
    model.compile(optimizer=sgd(0.01), loss="mse", metrics=["mae"])
    return model


SPARSE = "sparse_categorical_crossentropy"


def priorities() -> dict[str, Any]:
    x = {"title": rows(4), "tags": rows(3, seed=2)}
    y = {"priority": pixels(1).round(), "department": whole_numbers(below=3)}
    weights = {"priority": 2 * pixels(seed=4), "department": pixels(seed=5)}
    return {**batches(x, y, weights), "validation_data": (x, y)}


@world_model(priorities)
def several_outputs() -> keras.Model:
    """Dicts of inputs, outputs, losses, weights of losses, weights of rows, and metrics."""
    inputs = {"title": keras.Input((4,), name="title"), "tags": keras.Input((3,), name="tags")}
    x = layers.Dense(6, activation="relu")(layers.concatenate(list(inputs.values())))
    outputs = {
        "priority": layers.Dense(1, name="priority")(x),
        "department": layers.Dense(3, activation="softmax", name="department")(x),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=adam(),
        loss={"priority": keras.losses.BinaryCrossentropy(from_logits=True), "department": SPARSE},
        loss_weights={"priority": 1.0, "department": 0.2},
        metrics={"department": ["accuracy"]},
        weighted_metrics={"priority": ["mae", keras.metrics.MeanSquaredError(name="mse")]},
    )
    return model


class Distiller(keras.Model):
    """A frozen teacher and a student; `compile` takes two loss functions, `compute_loss` mixes them."""

    def __init__(self, student: keras.Model, teacher: keras.Model) -> None:
        super().__init__()
        self.teacher, self.student = teacher, student

    def compile(self, optimizer: Any, metrics: Any, student_loss_fn: Any, distillation_loss_fn: Any) -> None:
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn, self.distillation_loss_fn = student_loss_fn, distillation_loss_fn

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, allow_empty: bool = False
    ) -> Any:
        teacher_pred = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        soft = ops.softmax(teacher_pred / 3.0, axis=1), ops.softmax(y_pred / 3.0, axis=1)
        return 0.1 * student_loss + 0.9 * self.distillation_loss_fn(*soft) * 9.0

    def call(self, x: Any) -> Any:
        return self.student(x)


@world_model(lambda: image_classes(8))
def distillation() -> keras.Model:
    def classifier(width: int) -> keras.Model:
        return keras.Sequential(
            [keras.Input((8, 8, 1)), layers.Conv2D(width, 3, strides=2), layers.Flatten(), layers.Dense(3)]
        )

    teacher = classifier(6)
    teacher.trainable = False
    distiller = Distiller(student=classifier(2), teacher=teacher)
    distiller.compile(
        optimizer=sgd(0.01),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
        student_loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        distillation_loss_fn=keras.losses.KLDivergence(),
    )
    return distiller


class CustomModel(keras.Model):
    """The guide's step from the lowest level: its own metrics, weights of rows, a test step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    def train_step(self, data: Any) -> Any:
        x, y, sample_weight = data if len(data) == 3 else (*data, None)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

    def test_step(self, data: Any) -> Any:
        x, y = data[:2]
        y_pred = self(x, training=False)
        self.loss_tracker.update_state(self.loss_fn(y, y_pred))
        self.mae_metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker, self.mae_metric]


@world_model(lambda: batches(rows(5), rows(1, seed=3), 2 * pixels()))
def train_step_of_its_own() -> keras.Model:
    inputs = keras.Input((5,))
    model = CustomModel(inputs, layers.Dense(1)(layers.Dense(6, activation="tanh")(inputs)))
    model.compile(optimizer=adam())
    return model
