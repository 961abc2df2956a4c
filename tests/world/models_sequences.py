"""Sequences: forecasts, speech, captchas, cells of one's own, states that outlive a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from world import adam, batches, pixels, rows, sgd, whole_numbers, world_model


class CTCLayer(layers.Layer):
    """An endpoint: takes the labels as an input and adds one loss for each row."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        steps = ops.full((ops.shape(y_true)[0],), ops.shape(y_pred)[1], dtype="int32")
        length = ops.full((ops.shape(y_true)[0],), ops.shape(y_true)[1], dtype="int32")
        self.add_loss(ops.ctc_loss(y_true, ops.log(y_pred + 1e-7), length, steps))
        return y_pred


def captchas() -> dict[str, Any]:
    data = {"image": pixels(10, 8, 1), "label": whole_numbers(3, below=4) + 1}
    return {"x": tf.data.Dataset.from_tensor_slices(data).batch(8).prefetch(1)}


@world_model(captchas)
def captcha_ocr() -> keras.Model:
    input_img = layers.Input(shape=(10, 8, 1), name="image")
    labels = layers.Input(name="label", shape=(None,), dtype="int32")
    x = layers.Conv2D(4, (3, 3), activation="relu", padding="same")(input_img)
    x = layers.Reshape((10, 16))(layers.MaxPooling2D((1, 2))(x))
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)
    x = layers.Dense(6, activation="softmax", name="dense2")(x)
    output = CTCLayer(name="ctc_loss")(labels, x)
    model = keras.Model(inputs=[input_img, labels], outputs=output, name="ocr_model_v1")
    model.compile(optimizer=sgd(0.01))
    return model


def ctc_of_batch(y_true: Any, y_pred: Any) -> Any:
    steps = ops.full((ops.shape(y_true)[0],), ops.shape(y_pred)[1], dtype="int32")
    length = ops.full((ops.shape(y_true)[0],), ops.shape(y_true)[1], dtype="int32")
    return ops.ctc_loss(ops.cast(y_true, "int32"), y_pred, length, steps, mask_index=4)


@world_model(lambda: batches(rows(12, 6), whole_numbers(3, below=4)))
def speech_recognition() -> keras.Model:
    """DeepSpeech's shape: a spectrogram, convolutions, recurrent layers, a CTC loss function."""
    spectrogram = layers.Input((None, 6), name="input")
    x = layers.Reshape((-1, 6, 1))(spectrogram)
    x = layers.Conv2D(3, (3, 3), strides=(1, 2), padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization(synchronized=True)(x))
    x = layers.Reshape((-1, 9))(x)
    x = layers.Bidirectional(layers.GRU(4, return_sequences=True, reset_after=True))(x)
    model = keras.Model(spectrogram, layers.Dense(5)(x), name="DeepSpeech_2")
    model.compile(optimizer=adam(), loss=ctc_of_batch)
    return model


def weather() -> dict[str, Any]:
    series = np.cumsum(rows(3, num_rows=40), axis=0) * 0.3
    dataset = keras.utils.timeseries_dataset_from_array(
        series[:-4], series[4:, :1], sequence_length=8, sampling_rate=2, batch_size=8
    )
    return {"x": dataset, "validation_data": dataset.take(1)}


@world_model(weather)
def weather_forecast() -> keras.Model:
    inputs = keras.layers.Input(shape=(8, 3))
    model = keras.Model(inputs, layers.Dense(1)(layers.LSTM(6)(inputs)))
    model.compile(optimizer=sgd(), loss="mse")
    return model


def series_classifier(rate: float) -> keras.Model:
    inputs = keras.Input(shape=(10, 1))
    x = layers.MultiHeadAttention(key_dim=4, num_heads=2, dropout=rate)(inputs, inputs)
    res = layers.LayerNormalization(epsilon=1e-6)(layers.Dropout(rate)(x)) + inputs
    x = layers.Conv1D(filters=4, kernel_size=1, activation="relu")(res)
    x = layers.Conv1D(filters=1, kernel_size=1)(layers.Dropout(rate)(x)) + res
    x = layers.GlobalAveragePooling1D(data_format="channels_last")(x)
    x = layers.Dropout(rate)(layers.Dense(6, activation="relu")(x))
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(x))
    metrics = ["sparse_categorical_accuracy"]
    model.compile(loss="sparse_categorical_crossentropy", optimizer=adam(), metrics=metrics)
    return model


@world_model(
    lambda: {**batches(rows(10, 1), whole_numbers(below=3)), "validation_split": 0.2},
    for_replicas=lambda: series_classifier(0.0),
)
def series_transformer() -> keras.Model:
    return series_classifier(0.25)


@world_model(lambda: batches(rows(12, 1), rows(12, 1)))
def anomaly_autoencoder() -> keras.Model:
    options = {"kernel_size": 3, "padding": "same", "strides": 2, "activation": "relu"}
    model = keras.Sequential(
        [
            layers.Input((12, 1)),
            layers.Conv1D(filters=6, **options),
            layers.Conv1D(filters=4, **options),
            layers.Conv1DTranspose(filters=4, **options),
            layers.Conv1DTranspose(filters=6, **options),
            layers.Conv1DTranspose(filters=1, kernel_size=3, padding="same"),
        ]
    )
    model.compile(optimizer=adam(), loss="mse")
    return model


@world_model(
    lambda: {"x": rows(5, 3, num_rows=16), "y": rows(1, num_rows=16), "batch_size": 8},
    refused="(?s)stateful.*replica",
    quick=True,
)
def stateful_rnn() -> keras.Model:
    model = keras.Sequential([keras.Input(batch_shape=(8, 5, 3)), layers.LSTM(4, stateful=True), layers.Dense(1)])
    model.compile(optimizer=sgd(), loss="mse")
    return model


class ChunkedCell(layers.Layer):
    """A cell of the guide: one matrix, one state."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = self.state_size = units

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), initializer="uniform", name="kernel")
        self.recurrent = self.add_weight(shape=(self.units, self.units), initializer="uniform", name="recurrent")

    def call(self, inputs: Any, states: Any) -> Any:
        output = ops.matmul(inputs, self.kernel) + ops.matmul(states[0], self.recurrent)
        return output, [output]


class SequenceBatches(keras.utils.PyDataset):
    """Batches of a PyDataset whose last one is smaller."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        part = slice(8 * index, 8 * index + 8)
        return rows(6, 3)[part], rows(1, seed=4)[part]


@world_model(lambda: {"x": SequenceBatches()})
def own_recurrent_cells() -> keras.Model:
    cells = [ChunkedCell(4), layers.GRUCell(3)]
    model = keras.Sequential([keras.Input((6, 3)), layers.RNN(cells), layers.Dense(1)])
    model.compile(optimizer=sgd(), loss="mse", metrics=["mae"])
    return model


def generated_sequences() -> Iterator[Any]:
    """Batches without an end, as a generator gives them."""
    random = np.random.default_rng(0)
    while True:
        x = random.normal(size=(7, 5, 3)).astype("float32")
        yield x, x.sum(axis=(1, 2))[:, None]


@world_model(lambda: {"x": generated_sequences(), "steps_per_epoch": 3})
def temporal_convolutions() -> keras.Model:
    model = keras.Sequential([keras.Input((5, 3))])
    for dilation in (1, 2, 4):
        model.add(layers.Conv1D(4, 2, padding="causal", dilation_rate=dilation, activation="relu"))
    model.add(layers.Lambda(lambda x: x[:, -1]))
    model.add(layers.Dense(1))
    model.compile(optimizer=sgd(0.01), loss=keras.losses.Huber())
    return model
