"""Small models of four families for tests of pipeline stages, and a training run in stages."""

import keras
import numpy as np
import tensorflow as tf

import tfaccel
from tfaccel.training.fit import plan_of_model

LAYERS = keras.layers
NUM_ROWS, BATCH = 44, 4  # 11 batches: the last optimizer step of an epoch with 4 micro-batches goes on in the next
RANDOM = np.random.default_rng(0)
Y = RANDOM.integers(0, 4, NUM_ROWS)
X = {
    "mlp": RANDOM.normal(size=(NUM_ROWS, 12)).astype("float32"),
    "cnn": RANDOM.normal(size=(NUM_ROWS, 8, 8, 1)).astype("float32"),
    "lstm": RANDOM.normal(size=(NUM_ROWS, 6, 3)).astype("float32"),
    "transformer": RANDOM.integers(0, 20, (NUM_ROWS, 6)).astype("int32"),
}


def mlp():
    blocks = [(LAYERS.Dense(16, activation="gelu"), LAYERS.Dropout(0.2)) for _ in range(4)]
    return keras.Sequential([keras.Input((12,)), *(layer for block in blocks for layer in block), LAYERS.Dense(4)])


def cnn():
    image = keras.Input((8, 8, 1))
    h = LAYERS.Conv2D(8, 3, padding="same")(image)
    for _ in range(3):
        own = LAYERS.Conv2D(8, 3, padding="same", activation="relu")(LAYERS.BatchNormalization()(h))
        h = LAYERS.Add()([h, own])
    return keras.Model(image, LAYERS.Dense(4)(LAYERS.Flatten()(LAYERS.MaxPooling2D(4)(h))))


def lstm():
    series = keras.Input((6, 3))
    h = LAYERS.LSTM(8, return_sequences=True)(series)
    h = LAYERS.LSTM(8, return_sequences=True)(h)
    return keras.Model(series, LAYERS.Dense(4)(LAYERS.LSTM(8)(h)))


def transformer():
    ids = keras.Input((6,), dtype="int32")
    h = LAYERS.Embedding(20, 16, mask_zero=True)(ids)
    for _ in range(2):
        attended = LAYERS.MultiHeadAttention(2, 8, dropout=0.1)(h, h)
        h = LAYERS.LayerNormalization()(LAYERS.Add()([h, attended]))
        own = LAYERS.Dense(16)(LAYERS.Dense(32, activation="gelu")(h))
        h = LAYERS.LayerNormalization()(LAYERS.Add()([h, own]))
    return keras.Model(ids, LAYERS.Dense(4)(LAYERS.GlobalAveragePooling1D()(h)))


MODELS = {"mlp": mlp, "cnn": cnn, "lstm": lstm, "transformer": transformer}


def compiled(family, stages, k, *, make=None, optimizer=None, num_replicas=1, policy="float32"):
    """A compiled model that accumulates k batches, under the strategy of the first stages' devices."""
    keras.utils.set_random_seed(3)
    first = [f"CPU:{replica * stages}" for replica in range(num_replicas)]
    strategy = tf.distribute.MirroredStrategy(first) if num_replicas > 1 else tf.distribute.get_strategy()
    keras.config.set_dtype_policy(policy)
    try:
        with strategy.scope():
            model = (make or MODELS[family])()
            optimizer = keras.optimizers.Adam(0.01) if optimizer is None else optimizer()
            inner = getattr(optimizer, "inner_optimizer", optimizer)
            inner.gradient_accumulation_steps = k if k > 1 else None
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer, loss, metrics=["accuracy"])
    finally:
        keras.config.set_dtype_policy("float32")
    return model


def trained(family, stages, k, *, num_replicas=1, arguments=None, fields=None, **options):
    """Trains for two epochs; returns the model, its weights and the optimizer's variables, and the history."""
    model = compiled(family, stages, k, num_replicas=num_replicas, **options)
    devices = tuple(f"CPU:{index}" for index in range(stages * num_replicas))
    plan = plan_of_model(model, batch_size=BATCH, pipeline_stages=stages, devices=devices, **(fields or {}))
    given = {"x": X[family], "y": Y, "batch_size": BATCH, "epochs": 2, "verbose": 0, **(arguments or {})}
    history = tfaccel.fit(model, **given, plan=plan).history
    return model, [one.numpy() for one in (*model.variables, *model.optimizer.variables)], history


def difference(one, other):
    """The largest difference of two lists of arrays."""
    return max(float(np.abs(a.astype("float64") - b).max()) for a, b in zip(one, other, strict=True))
