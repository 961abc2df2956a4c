"""Tables: preprocessing inside and outside of the model, wide and deep networks, attention over columns."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from world import BATCH_SIZE, NUM_ROWS, adam, batches, rows, sgd, whole_numbers, world_model

KINDS = ("reversible", "fixed", "normal")


def table() -> dict[str, np.ndarray]:
    return {
        "age": 40 + 10 * rows(seed=1),
        "chol": 200 + 30 * rows(seed=2),
        "sex": whole_numbers(below=2),
        "thal": np.array(KINDS)[whole_numbers(below=3, seed=3)],
    }


def table_batches() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((table(), whole_numbers(below=2, seed=4))).batch(BATCH_SIZE)


FEATURES = keras.utils.FeatureSpace


def adapted_features() -> FEATURES:
    space = FEATURES(
        features={
            "sex": FEATURES.integer_categorical(num_oov_indices=0),
            "thal": FEATURES.string_categorical(num_oov_indices=0),
            "age": FEATURES.float_discretized(num_bins=3),
            "chol": FEATURES.float_normalized(),
        },
        crosses=[FEATURES.cross(feature_names=("sex", "thal"), crossing_dim=6)],
        output_mode="concat",
    )
    space.adapt(tf.data.Dataset.from_tensor_slices(table()).batch(NUM_ROWS))
    return space


def encoded_table() -> dict[str, Any]:
    space = adapted_features()
    return {"x": table_batches().map(lambda x, y: (space(x), y)).prefetch(tf.data.AUTOTUNE)}


@world_model(encoded_table)
def feature_space() -> keras.Model:
    """Structured data: the pipeline encodes, the model trains on what comes out."""
    encoded = adapted_features().get_encoded_features()
    x = layers.Dropout(0.0)(layers.Dense(8, activation="relu")(encoded))
    model = keras.Model(inputs=encoded, outputs=layers.Dense(1, activation="sigmoid")(x))
    model.compile(optimizer=adam(), loss="binary_crossentropy", metrics=["accuracy"])
    return model


def encode_inputs(inputs: dict[str, Any], width: int) -> dict[str, Any]:
    """Each column as a vector, from raw numbers and strings."""
    thal = layers.StringLookup(vocabulary=list(KINDS), num_oov_indices=1)(inputs["thal"])
    return {
        "thal": layers.Embedding(4, width)(thal),
        "sex": layers.Embedding(2, width)(inputs["sex"]),
        "age": layers.Dense(width)(layers.Normalization(mean=40.0, variance=100.0)(inputs["age"][:, None])),
        "chol": layers.Dense(width)(layers.Normalization(mean=200.0, variance=900.0)(inputs["chol"][:, None])),
    }


def table_inputs() -> dict[str, Any]:
    dtypes = {"age": "float32", "chol": "float32", "sex": "int32", "thal": "string"}
    return {name: layers.Input(name=name, shape=(), dtype=dtype) for name, dtype in dtypes.items()}


@world_model(lambda: {"x": table_batches()})
def wide_and_deep() -> keras.Model:
    inputs = table_inputs()
    encoded = encode_inputs(inputs, 4)
    wide = layers.BatchNormalization(synchronized=True)(
        layers.CategoryEncoding(num_tokens=2, output_mode="one_hot")(inputs["sex"][:, None])
    )
    deep = layers.ReLU()(layers.Dense(6)(layers.concatenate(list(encoded.values()))))
    outputs = layers.Dense(2, activation="softmax")(layers.concatenate([wide, deep]))
    model = keras.Model(inputs=inputs, outputs=outputs)
    loss = keras.losses.SparseCategoricalCrossentropy()
    model.compile(optimizer=adam(), loss=loss, metrics=[keras.metrics.SparseCategoricalAccuracy()])
    return model


@world_model(lambda: {"x": table_batches().map(lambda x, y: (x, y, tf.cast(y + 1, tf.float32)))})
def tab_transformer() -> keras.Model:
    """Attention over the categorical columns; each row has a weight."""
    inputs = table_inputs()
    encoded = encode_inputs(inputs, 4)
    columns = ops.stack([encoded["thal"], encoded["sex"]], axis=1)
    columns += layers.Embedding(input_dim=2, output_dim=4)(ops.arange(start=0, stop=2, step=1))
    attention = layers.MultiHeadAttention(num_heads=2, key_dim=4)(columns, columns)
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([attention, columns]))
    numeric = layers.LayerNormalization(epsilon=1e-6)(layers.concatenate([encoded["age"], encoded["chol"]]))
    features = layers.concatenate([layers.Flatten()(x), numeric])
    features = layers.Dense(8, activation=keras.activations.selu)(features)
    model = keras.Model(inputs=inputs, outputs=layers.Dense(1, activation="sigmoid")(features))
    optimizer = keras.optimizers.AdamW(learning_rate=0.01, weight_decay=1e-3, epsilon=1e-3)
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.BinaryCrossentropy(),
        metrics=[keras.metrics.BinaryAccuracy(name="accuracy")],
    )
    return model


class GatedLinearUnit(layers.Layer):
    def __init__(self, units: int) -> None:
        super().__init__()
        self.linear, self.sigmoid = layers.Dense(units), layers.Dense(units, activation="sigmoid")

    def call(self, inputs: Any) -> Any:
        return self.linear(inputs) * self.sigmoid(inputs)


class GatedResidualNetwork(layers.Layer):
    def __init__(self, units: int) -> None:
        super().__init__()
        self.elu_dense, self.linear_dense = layers.Dense(units, activation="elu"), layers.Dense(units)
        self.gate, self.norm, self.project = GatedLinearUnit(units), layers.LayerNormalization(), layers.Dense(units)

    def call(self, inputs: Any) -> Any:
        x = self.linear_dense(self.elu_dense(inputs))
        return self.norm(self.project(inputs) + self.gate(x))


class VariableSelection(keras.Model):
    """A weight for each column of each row, then a mixture of the columns; a subclassed model on a dict."""

    def __init__(self, names: tuple[str, ...], units: int) -> None:
        super().__init__()
        self.names = names
        self.projections = [layers.Dense(units) for _ in names]
        self.grns = [GatedResidualNetwork(units) for _ in names]
        self.choice = GatedResidualNetwork(units)
        self.softmax = layers.Dense(len(names), activation="softmax")
        self.head = layers.Dense(1, activation="sigmoid")

    def call(self, inputs: Any) -> Any:
        columns = [dense(inputs[name]) for name, dense in zip(self.names, self.projections, strict=True)]
        weights = self.softmax(self.choice(ops.concatenate(columns, axis=1)))[:, None, :]
        mixed = ops.stack([grn(column) for grn, column in zip(self.grns, columns, strict=True)], axis=1)
        return self.head(ops.squeeze(ops.matmul(weights, mixed), axis=1))


def three_columns() -> dict[str, Any]:
    columns = {name: rows(size, seed=size) for name, size in (("first", 1), ("second", 2), ("third", 3))}
    return batches(columns, whole_numbers(below=2), np.linspace(0.1, 2.0, NUM_ROWS, dtype="float32"))


@world_model(three_columns)
def gated_variable_selection() -> keras.Model:
    model = VariableSelection(("first", "second", "third"), 4)
    model.compile(optimizer=adam(), loss="binary_crossentropy", weighted_metrics=["accuracy"])
    return model


class NeuralDecisionTree(keras.Model):
    """A soft tree: its leaves are weights of its own, reached with probabilities."""

    def __init__(self, depth: int, features: int, classes: int) -> None:
        super().__init__()
        self.depth = depth
        mask = np.eye(features, dtype="float32")[np.random.default_rng(0).permutation(features)[: features // 2]]
        self.used_features_mask = self.add_weight(
            shape=mask.shape, initializer=lambda *_, **__: mask, trainable=False, name="mask"
        )
        self.pi = self.add_weight(shape=(2**depth, classes), initializer="random_normal", name="pi")
        self.decision_fn = layers.Dense(2**depth, activation="sigmoid", name="decision")

    def call(self, features: Any) -> Any:
        used = ops.matmul(features, ops.transpose(self.used_features_mask))
        decisions = ops.expand_dims(self.decision_fn(used), axis=2)
        decisions = layers.concatenate([decisions, 1 - decisions], axis=2)
        mu = ops.ones_like(decisions[:, :1, :1])
        begin = 1
        for level in range(self.depth):
            mu = ops.repeat(ops.reshape(mu, (-1, 2**level, 1)), 2, axis=2) * decisions[:, begin : begin + 2**level, :]
            begin += 2**level
        return ops.matmul(ops.reshape(mu, (-1, 2**self.depth)), ops.softmax(self.pi))


@world_model(lambda: batches(rows(6), whole_numbers(below=3)))
def neural_decision_forest() -> keras.Model:
    inputs = keras.Input((6,))
    trees = [NeuralDecisionTree(2, 6, 3) for _ in range(2)]
    model = keras.Model(inputs, layers.average([tree(inputs) for tree in trees]))
    metrics = [keras.metrics.SparseCategoricalAccuracy()]
    model.compile(optimizer=sgd(), loss=keras.losses.SparseCategoricalCrossentropy(), metrics=metrics)
    return model
