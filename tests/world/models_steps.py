"""Steps and losses that do what examples do beside applying gradients: queues, masks, several optimizers, own noise."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from world import BATCH_SIZE, adam, batches, image_classes, pixels, rows, sentences, sgd, world_model


def whole_batches(*shape: int) -> dict[str, Any]:
    """Batches of one size, as a generative model with a fixed size needs them."""
    data = tf.data.Dataset.from_tensor_slices(rows(*shape)).batch(BATCH_SIZE, drop_remainder=True)
    return {"x": data}


class TokensByVector(keras.Model):
    """Differentiates the loss of each token as a vector; the tracker gets the same values, with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.classifier = layers.Embedding(12, 4), layers.Dense(12, activation="softmax")
        self.each = keras.losses.SparseCategoricalCrossentropy(reduction=None)
        self.tracker = keras.metrics.Mean(name="loss_of_tokens")

    def call(self, tokens: Any) -> Any:
        return self.classifier(self.embedding(tokens))

    def train_step(self, data: Any) -> Any:
        tokens, targets, weights = data
        with tf.GradientTape() as tape:
            loss = self.each(targets, self(tokens, training=True), sample_weight=weights)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss, sample_weight=weights)
        return {"loss_of_tokens": self.tracker.result()}

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]


@world_model(
    lambda: batches(sentences(6), sentences(6, seed=4), (sentences(6) % 3 == 0).astype("float32")), evaluates=False
)
def masked_tokens_by_vector() -> keras.Model:
    model = TokensByVector()
    model.compile(optimizer=sgd())
    return model


class Transcriber(keras.Model):
    """Computes the compiled loss with a mask as weights in its step; the batch is one dict."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = layers.Conv1D(4, 3, padding="same", activation="relu")
        self.embedding, self.attention = layers.Embedding(12, 4), layers.Attention()
        self.classifier = layers.Dense(12)
        self.tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs: Any) -> Any:
        sound, text = inputs
        return self.classifier(self.attention([self.embedding(text), self.convolution(sound)]))

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def train_step(self, data: Any) -> Any:
        text, targets = data["text"][:, :-1], data["text"][:, 1:]
        with tf.GradientTape() as tape:
            outputs = self([data["sound"], text])
            mask = tf.math.logical_not(tf.math.equal(targets, 0))
            loss = self.compute_loss(None, tf.one_hot(targets, 12), outputs, sample_weight=mask)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


@world_model(lambda: batches({"sound": rows(7, 3), "text": sentences(7)}), evaluates=False, predicts=False)
def transcription_with_a_mask() -> keras.Model:
    model = Transcriber()
    model.compile(optimizer=adam(), loss=keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1))
    return model


class ClusterEntropy(keras.losses.Loss):
    """How evenly the rows of the batch are spread over clusters; replaces `__call__`, as losses of Keras 2 did."""

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        share = ops.clip(ops.mean(y_pred, axis=0), 1e-8, 1.0)
        return ops.log(4.0) + ops.sum(share * ops.log(share))


@world_model(lambda: batches(image_classes(8)["x"], np.ones(21, "float32")))
def clusters_of_images() -> keras.Model:
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(4, "softmax")])
    model.compile(optimizer=sgd(), loss=ClusterEntropy())
    return model


class WindowBias(layers.Layer):
    """Attention within windows, with a learned bias for each relative position, whose index is a weight."""

    def build(self, shape: Any) -> None:
        del shape
        place = np.arange(4)
        index = (place[:, None] - place[None, :] + 3).ravel().astype("int32")
        self.table = self.add_weight(shape=(7, 1), name="table")
        self.index = self.add_weight(
            shape=(16,), dtype="int32", initializer=lambda *_, **__: tf.constant(index), trainable=False, name="index"
        )

    def call(self, inputs: Any) -> Any:
        bias = tf.reshape(tf.gather(self.table, self.index), (1, 4, 4))
        windows = tf.reshape(inputs, (-1, 4, inputs.shape[-1]))
        scores = tf.nn.softmax(windows @ tf.transpose(windows, (0, 2, 1)) + bias)
        return tf.reshape(scores @ windows, (-1, *inputs.shape[1:]))


@world_model(lambda: batches(rows(8, 3), rows(1)))
def relative_positions() -> keras.Model:
    inputs = keras.Input((8, 3))
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(WindowBias()(inputs))))
    model.compile(optimizer=adam(clipvalue=0.5), loss="mse")
    return model


class MaskedConvolution(layers.Layer):
    """Multiplies its kernel by a mask in `call`, as PixelCNN does."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = layers.Conv2D(2, 3, padding="same")

    def build(self, shape: Any) -> None:
        self.convolution.build(shape)
        self.mask = np.ones((3, 3, 1, 1), "float32")
        self.mask[1, 1:] = self.mask[2] = 0.0

    def call(self, images: Any) -> Any:
        self.convolution.kernel.assign(self.convolution.kernel * self.mask)
        return self.convolution(images)


@world_model(lambda: batches(pixels(6, 6, 1), pixels(6, 6, 1)))
def masked_convolution() -> keras.Model:
    model = keras.Sequential([keras.Input((6, 6, 1)), MaskedConvolution(), layers.Conv2D(1, 1, activation="sigmoid")])
    model.compile(optimizer=adam(), loss="binary_crossentropy")
    return model


class TwoTranslators(keras.Model):
    """Two networks that undo each other, with an optimizer each, and one tape for both."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.back = layers.Dense(3), layers.Dense(3)
        self.mse = keras.losses.MeanSquaredError()

    def call(self, inputs: Any) -> Any:
        return self.back(self.there(inputs[0])), self.there(self.back(inputs[1]))

    def compile(self, there: Any, back: Any) -> None:
        super().compile()
        self.of_there, self.of_back = there, back

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            one, other = self(data)
            loss = self.mse(data[0], one) + self.mse(data[1], other)
            shift = self.mse(data[1], self.there(data[0]))
            total = loss + shift
        for layer, optimizer in ((self.there, self.of_there), (self.back, self.of_back)):
            gradients = tape.gradient(total, layer.trainable_variables)
            optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        return {"cycle": loss, "shift": shift}


@world_model(
    lambda: {"x": tf.data.Dataset.from_tensor_slices((rows(3), rows(3, seed=5))).batch(7)},
    evaluates=False,
    predicts=False,
)
def two_translators() -> keras.Model:
    model = TwoTranslators()
    model.compile(adam(), adam())
    return model


class Denoiser(keras.Model):
    """Adds noise for a batch of a fixed size in its step."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.tracker = layers.Dense(3), keras.metrics.Mean(name="noise_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def train_step(self, data: Any) -> Any:
        noise = tf.random.normal((BATCH_SIZE, 3))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(noise - self.network(data + noise)))
        gradients = tape.gradient(loss, self.network.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        return {"noise_loss": self.tracker.result()}


@world_model(
    lambda: whole_batches(3),
    refused="Denoiser.train_step works on a batch of 8 rows, but not on the 4 of one replica",
    evaluates=False,
    predicts=False,
)
def noise_of_fixed_size() -> keras.Model:
    model = Denoiser()
    model.compile(optimizer=adam())
    return model


class Neighbours(keras.Model):
    """Draws its outputs to the nearest of those of earlier batches, which a queue keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.tracker = layers.Dense(3), keras.metrics.Mean(name="loss")
        start = keras.initializers.RandomNormal(seed=3)
        self.queue = self.add_weight(shape=(12, 3), initializer=start, trainable=False, name="queue")

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def call(self, inputs: Any) -> Any:
        return self.encoder(inputs)

    def train_step(self, data: Any) -> Any:
        inputs = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            outputs = self(inputs, training=True)
            nearest = tf.gather(self.queue.value, tf.argmax(outputs @ tf.transpose(self.queue.value), axis=1))
            loss = tf.reduce_mean(tf.square(outputs - tf.stop_gradient(nearest)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.queue.assign(tf.concat([outputs, self.queue.value[: -tf.shape(outputs)[0]]], axis=0))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


@world_model(lambda: batches(rows(4)), refused="queue", evaluates=False)
def queue_of_outputs() -> keras.Model:
    model = Neighbours()
    model.compile(optimizer=sgd())
    return model


def two_streams() -> dict[str, Any]:
    """Labelled rows, and three times as many without labels, each in batches of their own."""
    x, y = rows(6, num_rows=16), rows(1, seed=1, num_rows=16)
    labelled = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    unlabelled = tf.data.Dataset.from_tensor_slices(rows(6, seed=2, num_rows=48)).batch(24)
    return {"x": tf.data.Dataset.zip({"labelled": labelled, "unlabelled": unlabelled})}


class SemiSupervised(keras.Model):
    """Joins the rows of two streams; logs what it computes from the results of metrics, and weighs a loss by one."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.top = layers.Dense(6, activation="tanh"), layers.Dense(1)
        self.of_labels, self.of_others = keras.metrics.Mean(name="of_labels"), keras.metrics.Mean(name="of_others")

    def call(self, x: Any) -> Any:
        return self.top(self.hidden(x))

    def train_step(self, data: Any) -> Any:
        x, y = data["labelled"]
        weight = 0.5 / (1.0 + self.of_labels.result())
        with tf.GradientTape() as tape:
            outputs = self(tf.concat([x, data["unlabelled"]], axis=0))
            own, others = tf.split(outputs, [tf.shape(x)[0], tf.shape(outputs)[0] - tf.shape(x)[0]])
            of_labels, of_others = tf.reduce_mean((y - own) ** 2), tf.reduce_mean(tf.nn.relu(others))
            loss = of_labels + weight * of_others
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.of_labels.update_state(of_labels)
        self.of_others.update_state(of_others)
        results = {metric.name: metric.result() for metric in self.metrics}
        ratio = results["of_others"] / results["of_labels"]
        return {**results, "perplexity": tf.exp(results["of_labels"]), "ratio": ratio}

    @property
    def metrics(self) -> list[Any]:
        return [self.of_labels, self.of_others]


@world_model(two_streams, evaluates=False, predicts=False)
def semi_supervised() -> keras.Model:
    model = SemiSupervised()
    model.compile(optimizer=sgd())
    return model
