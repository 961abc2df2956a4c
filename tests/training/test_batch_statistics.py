"""Batch normalization over several replicas: one device's numbers where it is synchronized, a clear word where not."""

import json

import pytest

PROGRAM = """
import json, logging, sys
import keras, numpy as np, tensorflow as tf, tfaccel
from keras import layers
from tfaccel.errors import PlanError
from tfaccel.training.batch_statistics import synchronize_batch_norm
from tfaccel.training.engine import EngineOptions
from tfaccel.training.fit import fit
from tfaccel.training.rematerialize import rematerialize

CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 4)
ROWS = np.random.default_rng(0)
X, Y = ROWS.normal(size=(21, 4, 4, 3)).astype("float32"), ROWS.normal(size=(21, 2)).astype("float32")
X[12:, 2:] = 0.0  # what is masked, and more so in the rows of the last replica
said = []
logging.getLogger("tfaccel").addFilter(lambda record: said.append(record.getMessage()))

norm = lambda **options: layers.BatchNormalization(momentum=0.8, **options)

class Listed(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = [[norm()], {"second": norm(), "third": keras.Sequential([norm()])}]
        self.head = layers.Dense(2)

    def call(self, x, training=False):
        x = self.parts[1]["second"](self.parts[0][0](x, training=training), training=training)
        return self.head(layers.Flatten()(self.parts[1]["third"](x, training=training)))

class OwnStep(keras.Model):
    def train_step(self, data):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True), weight)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return self.compute_metrics(x, y, None, weight)

class OwnCall(layers.BatchNormalization):
    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=training, mask=mask)

def block(shape):
    inputs = keras.Input(shape)
    return keras.Model(inputs, layers.Conv2D(3, 3, padding="same")(norm()(layers.Conv2D(3, 1)(inputs))))

def hidden(kind, x):
    if kind == "nested":
        return keras.Sequential([block(x.shape[1:]), layers.Conv2D(4, 3)])(x)
    if kind == "rematerialized":
        return rematerialize(block(x.shape[1:]))(rematerialize(block(x.shape[1:]))(x))
    if kind == "renorm, axis 1":
        return norm(axis=1)(norm(renorm=True)(x))
    if kind == "time":
        return layers.TimeDistributed(norm())(x)
    if kind == "masked":
        return layers.GlobalAveragePooling1D()(norm()(layers.Masking()(layers.Reshape((16, 3))(x))))
    if kind == "spectral":
        return layers.SpectralNormalization(layers.Conv2D(4, 3))(x)
    if kind == "frozen":
        frozen = norm(name="frozen")
        frozen.trainable = False
        return frozen(x)
    if kind == "own call":
        return OwnCall(name="own_call")(x)
    return norm(synchronized=kind == "as Keras")(layers.Conv2D(4, 3, activation="tanh")(x))

def trained(kind, num_replicas, synchronize=True, jit_compile=False, **options):
    one = tf.distribute.get_strategy()
    devices = [f"CPU:{i}" for i in range(num_replicas)]
    strategy = one if num_replicas == 1 else tf.distribute.MirroredStrategy(devices)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        if kind == "listed":
            model = Listed()
        else:
            x = keras.Input((None, 4, 3) if kind == "loop" else (4, 4, 3))
            y = layers.TimeDistributed(norm(name="looped"))(x) if kind == "loop" else hidden(kind, x)
            y = layers.GlobalAveragePooling2D()(y) if kind == "loop" else layers.Flatten()(y)
            model = (OwnStep if kind == "own step" else keras.Model)(x, layers.Dense(2, name="head")(y))
        if synchronize and num_replicas > 1:
            synchronize_batch_norm(model)
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        model.compile(optimizer, "mse", metrics=["mae"], jit_compile=jit_compile)
    history = tfaccel.fit(model, X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    return history["loss"] + history["mae"], model

def difference(kind, num_replicas):
    (numbers, model), (others, other) = trained(kind, 1), trained(kind, num_replicas)
    weights = zip(model.weights, other.weights, strict=True)
    found = [np.abs(np.array(numbers) / np.array(others) - 1).max()]
    return float(max(found + [np.abs(a.numpy() - b.numpy()).max() for a, b in weights]))
"""


def test_synchronized_statistics_are_those_of_one_device(run_python):
    # The last batch has one row, so that other replicas borrow it; it has a graph of its own.
    kinds = ["nested", "listed", "masked", "own step", "rematerialized", "spectral"]
    child = run_python(PROGRAM + "print(json.dumps([{k: difference(k, 4) for k in sys.argv[1:]}, said]))", *kinds)
    found, said = json.loads(child.stdout.splitlines()[-1])
    assert max(found.values()) < 1e-5, found
    assert said == []


@pytest.mark.slow
def test_more_kinds_of_layers_under_two_and_three_replicas(run_python):
    kinds = ["as Keras", "renorm, axis 1", "time", "frozen", "own step", "spectral"]
    code = "print(json.dumps({f'{k} {n}': difference(k, n) for k in sys.argv[1:] for n in (2, 3)}))"
    found = json.loads(run_python(PROGRAM + code, *kinds, timeout_seconds=400).stdout.splitlines()[-1])
    assert max(found.values()) < 1e-5, found


def test_what_is_not_synchronized_is_said_once_before_the_first_step(run_python):
    code = """
_, model = trained("plain", 2, synchronize=False)
tfaccel.fit(model, X, Y, batch_size=4, verbose=0)
first = list(said)
trained("frozen", 2, synchronize=False)
trained("as Keras", 2, synchronize=False)
trained("plain", 1, synchronize=False)
quiet = said[len(first):]
trained("own call", 2)
trained("plain", 2, jit_compile=True)
try:
    trained("loop", 2)
except PlanError as error:
    said.append(str(error))
_, model = trained("plain", 2)
print(json.dumps([first, quiet, said[len(first):], [layer.synchronized for layer in model.layers
                                                  if isinstance(layer, layers.BatchNormalization)]]))
"""
    first, quiet, later, flags = json.loads(run_python(PROGRAM + code).stdout.splitlines()[-1])
    assert len(first) == 1
    assert (
        "With 2 replicas, batch normalization (batch_normalization) takes its statistics over the rows of" in first[0]
    )
    assert "Use BatchNormalization(synchronized=True), or synchronize_batch_norm=True in a plan." in first[0]
    assert quiet == []
    assert "batch normalization (own_call)" in later[0]
    assert "Their classes override `call`" in later[0]
    assert "XLA stays off for training: synchronized batch normalization (batch_normalization" in later[1]
    assert "synchronize_batch_norm=False in the plan" in later[1]
    assert "'looped' runs inside a loop" in later[2]
    assert flags == [False]  # the layers are saved as they were made
