"""What Keras Tuner's guides search, written anew on small data: workloads and spaces for `tfaccel.search`."""

import os

import keras
import keras_tuner
import numpy as np
from keras import layers

from tfaccel import Workload

SIDE, CLASSES, BATCH = 8, 4, 16


def _workload(name, train, held_out):
    def batches(arrays, batch_size):
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)

    def train_data(batch_size, *, seed, epoch):
        return batches(train, batch_size)

    return Workload(
        name,
        keras.Sequential,
        dict,
        train_data,
        lambda batch_size: batches(held_out, batch_size),
        global_batch_size=BATCH,
        epochs=1,
        num_train_examples=len(train[0]),
    )


def image_arrays(seed, rows, *, one_hot):
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, rows)
    images = random.random((rows, SIDE, SIDE, 1)).astype("float32") * 0.1
    images[np.arange(rows), labels, labels, 0] += 1.0
    return images, keras.utils.to_categorical(labels, CLASSES) if one_hot else labels


def images():
    """Images with one-hot labels."""
    return _workload("images", image_arrays(1, 96, one_hot=True), image_arrays(2, 32, one_hot=True))


def labelled_images():
    """Images with whole numbers for labels."""
    return _workload("labelled_images", image_arrays(1, 96, one_hot=False), image_arrays(2, 32, one_hot=False))


def numbers():
    """Rows of ten numbers, and a number to each."""
    random = np.random.default_rng(3)
    rows = [random.random((n, 10)).astype("float32") for n in (96, 32)]
    train, held_out = ((x, x.sum(axis=1, keepdims=True)) for x in rows)
    return _workload("numbers", train, held_out)


def classifier(*hidden, optimizer="adam", loss="categorical_crossentropy"):
    model = keras.Sequential([layers.Flatten(), *hidden, layers.Dense(CLASSES, activation="softmax")])
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    return model


def several_layers(hp):
    """Layers whose number is searched, each with hyperparameters of its own."""
    hidden = [
        layers.Dense(hp.Int(f"units_{i}", 8, 32, step=8), hp.Choice("activation", ["relu", "tanh"]))
        for i in range(hp.Int("num_layers", 1, 3))
    ]
    if hp.Boolean("dropout"):
        hidden.append(layers.Dropout(0.25))
    return classifier(*hidden, optimizer=keras.optimizers.Adam(hp.Float("lr", 1e-4, 1e-2, sampling="log")))


class CustomMetric(keras.metrics.Metric):
    """A metric of one's own."""

    def __init__(self, name="custom_metric", **kwargs):
        super().__init__(name=name, **kwargs)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.sum(keras.ops.square(y_true - y_pred)))
        self.count.assign_add(keras.ops.cast(keras.ops.shape(y_true)[0], "float32"))

    def result(self):
        return self.total / self.count


def regressor(hp, **compiled):
    model = keras.Sequential([layers.Dense(hp.Int("units", 8, 32, step=8), "relu"), layers.Dense(1)])
    if compiled:
        model.compile(**compiled)
    return model


def with_built_in_metric(hp):
    """A metric of Keras's."""
    return regressor(hp, optimizer="adam", loss="mse", metrics=[keras.metrics.MeanAbsoluteError()])


def with_custom_metric(hp):
    """A metric of one's own."""
    return regressor(hp, optimizer="adam", loss="mse", metrics=[CustomMetric()])


def tailored(hp):
    """A space of which parts are fixed, overridden or left at their defaults."""
    hidden = [layers.Dense(hp.Int("units", 8, 32, step=8, default=16))]
    if hp.Boolean("dropout"):
        hidden.append(layers.Dropout(0.25))
    rate = hp.Choice("learning_rate", [1e-2, 1e-3, 1e-4])
    return classifier(*hidden, optimizer=keras.optimizers.Adam(rate), loss="sparse_categorical_crossentropy")


def not_compiled(hp):
    """A model that is left to be compiled."""
    return keras.Sequential([layers.Flatten(), layers.Dense(hp.Int("units", 8, 32, step=8)), layers.Dense(1)])


def _of_size(hp, error):
    units = hp.Int("units_1", 10, 40, step=10), hp.Int("units_2", 10, 30, step=10)
    model = keras.Sequential([keras.Input((10,)), *map(layers.Dense, units), layers.Dense(1)])
    model.compile(loss="mse")
    if model.count_params() > 800:
        folder = os.environ.get("TFACCEL_TEST_TRIES")
        if folder:  # so that a test can count
            with open(os.path.join(folder, "tries"), "a") as file:
                file.write("{}x{}\n".format(*units))
        raise error(f"Model too large! It contains {model.count_params()} params.")
    return model


def too_large(hp):
    """Some trials raise."""
    return _of_size(hp, ValueError)


def too_large_for_good(hp):
    """Some trials raise what says that they would raise it again."""
    return _of_size(hp, keras_tuner.errors.FailedTrialError)


def too_large_for_all(hp):
    """Some trials raise what ends the search."""
    return _of_size(hp, keras_tuner.errors.FatalValueError)


def mlp_or_cnn(hp):
    """Two kinds of models, with hyperparameters of the same name under conditions of their own."""
    inputs = keras.Input((SIDE, SIDE, 1))
    kind = hp.Choice("model_type", ["mlp", "cnn"])
    x = inputs
    with hp.conditional_scope("model_type", ["mlp"]):
        if kind == "mlp":
            x = layers.Flatten()(x)
            for i in range(hp.Int("mlp_layers", 1, 2)):
                x = layers.Dense(hp.Int(f"units_{i}", 8, 32, step=8), "relu")(x)
    with hp.conditional_scope("model_type", ["cnn"]):
        if kind == "cnn":
            for i in range(hp.Int("cnn_layers", 1, 2)):
                x = layers.Conv2D(hp.Choice(f"units_{i}", [4, 6]), 3, activation="relu")(x)
            x = layers.Flatten()(x)
    momentum = hp.Float("momentum", 0.5, 0.9, parent_name="model_type", parent_values=["cnn"])
    outputs = layers.Dense(CLASSES, activation="softmax")(x)
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.01, momentum=momentum or 0.0), "categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def with_batch_norm(hp):
    """A convolutional model."""
    inputs = x = keras.Input((SIDE, SIDE, 1))
    for i in range(hp.Int("conv_layers", 1, 2, default=2)):
        x = layers.Conv2D(hp.Int(f"filters_{i}", 4, 8, step=4), 3, activation="relu", padding="same")(x)
        x = (
            layers.MaxPooling2D()(x)
            if hp.Choice(f"pooling_{i}", ["max", "avg"]) == "max"
            else layers.AveragePooling2D()(x)
        )
        x = layers.BatchNormalization(synchronized=True)(x)
    model = keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(layers.GlobalMaxPooling2D()(x)))
    model.compile(hp.Choice("optimizer", ["adam", "sgd"]), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def forest(hp):
    """A model of scikit-learn."""
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(n_estimators=hp.Int("trees", 10, 50, step=10))


def hyperparameters(**entries):
    """Keras Tuner's hyperparameters, by name and value or arguments of Float."""
    hp = keras_tuner.HyperParameters()
    for name, entry in entries.items():
        hp.Float(name, *entry, sampling="log") if isinstance(entry, tuple) else hp.Fixed(name, entry)
    return hp
