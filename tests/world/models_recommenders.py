"""Recommenders and graphs: rows that are looked up, looked up beside others, or merged with others."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from world import adam, batches, pixels, rows, sgd, whole_numbers, world_model

USERS, MOVIES = 9, 7


def ratings() -> dict[str, Any]:
    pairs = np.stack([whole_numbers(below=USERS), whole_numbers(below=MOVIES, seed=3)], axis=1)
    return batches(pairs, pixels(1))


class RecommenderNet(keras.Model):
    """Users and movies by their vectors; `coupled` takes one product of the whole batch for all of its rows."""

    def __init__(self, *, coupled: bool) -> None:
        super().__init__()
        self.coupled = coupled
        options = {"embeddings_initializer": "he_normal", "embeddings_regularizer": keras.regularizers.l2(1e-3)}
        self.user_embedding, self.user_bias = layers.Embedding(USERS, 4, **options), layers.Embedding(USERS, 1)
        self.movie_embedding, self.movie_bias = layers.Embedding(MOVIES, 4, **options), layers.Embedding(MOVIES, 1)

    def call(self, inputs: Any) -> Any:
        user, movie = self.user_embedding(inputs[:, 0]), self.movie_embedding(inputs[:, 1])
        product = ops.tensordot(user, movie, 2) if self.coupled else ops.sum(user * movie, axis=1, keepdims=True)
        return ops.nn.sigmoid(product + self.user_bias(inputs[:, 0]) + self.movie_bias(inputs[:, 1]))


def recommender(*, coupled: bool) -> keras.Model:
    model = RecommenderNet(coupled=coupled)
    model.compile(loss=keras.losses.BinaryCrossentropy(), optimizer=adam())
    return model


@world_model(ratings, refused="RecommenderNet|rows of (a|the|one) batch")
def collaborative_filtering() -> keras.Model:
    return recommender(coupled=True)


@world_model(ratings)
def collaborative_filtering_by_rows() -> keras.Model:
    return recommender(coupled=False)


class TwoTowers(keras.Model):
    """Retrieval: a row's item against the items of all other rows of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.query_tower = keras.Sequential([layers.Embedding(USERS, 4), layers.Dense(3)])
        self.item_tower = keras.Sequential([layers.Embedding(MOVIES, 4), layers.Dense(3)])

    def call(self, inputs: Any) -> Any:
        return self.query_tower(inputs[:, 0]), self.item_tower(inputs[:, 1])

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        query, item = y_pred
        scores = ops.matmul(query, ops.transpose(item))
        labels = ops.arange(ops.shape(scores)[0])
        return ops.mean(keras.losses.sparse_categorical_crossentropy(labels, scores, from_logits=True))


@world_model(ratings, refused="TwoTowers|compute_loss|rows of (a|the|one) batch")
def two_tower_retrieval() -> keras.Model:
    model = TwoTowers()
    model.compile(optimizer=keras.optimizers.Adagrad(0.1))
    return model


class ListwiseRanking(keras.Model):
    """A list of movies for each user; the loss goes over the list, so that rows stay apart."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.movie = layers.Embedding(USERS, 4), layers.Embedding(MOVIES, 4)
        self.score = keras.Sequential([layers.Dense(6, activation="relu"), layers.Dense(1)])

    def call(self, inputs: Any) -> Any:
        user = ops.repeat(self.user(inputs["user"])[:, None, :], 5, axis=1)
        return ops.squeeze(self.score(ops.concatenate([user, self.movie(inputs["movies"])], axis=2)), axis=2)


def listwise_loss(y_true: Any, y_pred: Any) -> Any:
    return -ops.sum(ops.softmax(y_true) * ops.log_softmax(y_pred), axis=1)


@world_model(lambda: batches({"user": whole_numbers(below=USERS), "movies": whole_numbers(5, below=MOVIES)}, rows(5)))
def listwise_ranking() -> keras.Model:
    model = ListwiseRanking()
    model.compile(optimizer=sgd(), loss=listwise_loss)
    return model


# --- Graphs -------------------------------------------------------------------------------------------------------

NODES = 15
EDGES = np.stack([whole_numbers(below=NODES, num_rows=40), whole_numbers(below=NODES, seed=6, num_rows=40)])


class GNNNodeClassifier(keras.Model):
    """A graph that the model holds; the rows of a batch are indices of its nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.node_features = rows(5, num_rows=NODES)
        self.preprocess, self.prepare, self.update = (layers.Dense(4, activation="gelu") for _ in range(3))
        self.compute_logits = layers.Dense(3)

    def call(self, input_node_indices: Any) -> Any:
        nodes = self.preprocess(self.node_features)
        messages = self.prepare(ops.take(nodes, EDGES[1], axis=0))
        seen = ops.segment_sum(messages, EDGES[0], num_segments=NODES)
        x = self.update(ops.concatenate([nodes, seen], axis=1)) + nodes
        return self.compute_logits(ops.take(x, input_node_indices, axis=0))


@world_model(lambda: batches(whole_numbers(below=NODES), whole_numbers(below=3, seed=5)))
def graph_of_the_model() -> keras.Model:
    model = GNNNodeClassifier()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=adam(), loss=loss, metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")])
    return model


class GraphAttentionNetwork(keras.Model):
    """Steps of its own over node indices, predictions of the whole graph taken by index."""

    def __init__(self) -> None:
        super().__init__()
        self.states, self.edges = ops.convert_to_tensor(rows(5, num_rows=NODES)), ops.convert_to_tensor(EDGES.T)
        self.transform, self.attend, self.output_layer = layers.Dense(4), layers.Dense(1), layers.Dense(3)

    def call(self, inputs: Any) -> Any:
        states, edges = inputs
        states = self.transform(states)
        pairs = ops.reshape(ops.take(states, edges, axis=0), (-1, 8))
        scores = ops.exp(ops.clip(ops.leaky_relu(self.attend(pairs)), -2, 2))
        total = ops.take(ops.segment_sum(scores, edges[:, 0], num_segments=NODES), edges[:, 0], axis=0)
        neighbours = ops.take(states, edges[:, 1], axis=0) * scores / total
        return self.output_layer(states + ops.relu(ops.segment_sum(neighbours, edges[:, 0], num_segments=NODES)))

    def train_step(self, data: Any) -> Any:
        indices, labels = data
        with tf.GradientTape() as tape:
            outputs = self([self.states, self.edges])
            loss = self.compiled_loss_of(labels, tf.gather(outputs, indices))
        grads = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        return {"loss": loss}

    def compiled_loss_of(self, labels: Any, outputs: Any) -> Any:
        return self.compute_loss(y=labels, y_pred=outputs)

    def test_step(self, data: Any) -> Any:
        indices, labels = data
        return {"loss": self.compiled_loss_of(labels, tf.gather(self([self.states, self.edges]), indices))}

    def predict_step(self, data: Any) -> Any:
        indices = keras.utils.unpack_x_y_sample_weight(data)[0]
        return ops.softmax(tf.gather(self([self.states, self.edges]), indices))


@world_model(lambda: batches(whole_numbers(below=NODES), whole_numbers(below=3, seed=5)))
def graph_attention() -> keras.Model:
    model = GraphAttentionNetwork()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, optimizer=sgd())
    return model


def merged_molecules() -> dict[str, Any]:
    """Molecules of three to five atoms; the graphs of a batch are merged into one, as their rows are."""
    sizes = 3 + whole_numbers(below=3)
    atoms = tf.RaggedTensor.from_row_lengths(rows(4, num_rows=int(sizes.sum())), sizes)

    def merged(batch: Any, labels: Any) -> Any:
        return (batch.merge_dims(0, 1), tf.cast(batch.value_rowids(), tf.int32)), labels

    return {"x": tf.data.Dataset.from_tensor_slices((atoms, pixels(1).round())).batch(8).map(merged)}


class MPNN(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.atom, self.head = layers.Dense(4, activation="relu"), layers.Dense(1, activation="sigmoid")

    def call(self, inputs: Any) -> Any:
        atoms, molecule = inputs
        return self.head(tf.math.segment_sum(self.atom(atoms), molecule))


@world_model(merged_molecules, refused="replica", predicts=False)
def message_passing() -> keras.Model:
    model = MPNN()
    model.compile(loss=keras.losses.BinaryCrossentropy(), optimizer=adam(), metrics=[keras.metrics.AUC(name="AUC")])
    return model


def sampled_neighbours() -> dict[str, Any]:
    """For each node its features and those of three neighbours drawn in the pipeline: rows stay apart."""
    nodes = {"node": rows(5), "neighbours": rows(3, 5, seed=5)}
    return {"x": tf.data.Dataset.from_tensor_slices((nodes, whole_numbers(below=3))).batch(8)}


@world_model(sampled_neighbours)
def neighbour_sampling() -> keras.Model:
    node, neighbours = keras.Input((5,), name="node"), keras.Input((3, 5), name="neighbours")
    seen = layers.Lambda(lambda x: ops.mean(x, axis=1), output_shape=(4,))(layers.Dense(4)(neighbours))
    x = layers.UnitNormalization()(layers.Dense(6, activation="relu")(layers.concatenate([node, seen])))
    model = keras.Model({"node": node, "neighbours": neighbours}, layers.Dense(3)(x))
    model.compile(optimizer=adam(), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["acc"])
    return model
