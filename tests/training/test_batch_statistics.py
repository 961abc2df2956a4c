"""Batch normalization on several replicas: one device's statistics if synchronized, otherwise a message."""

import json

import pytest

PROGRAM = """
import json, logging, sys
import keras, numpy as np, tensorflow as tf, tfaccel
from keras import layers
from tfaccel.training.steps.batch_statistics import synchronize_batch_norm
from tfaccel.training.steps.engine import get_engine
from tfaccel.training.steps.rematerialized import rematerialize

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

    def train_step(self, data):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, weight)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return self.compute_metrics(x, y, y_pred, weight)

class OwnCall(layers.BatchNormalization):
    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=training, mask=mask)

def block():
    inputs = keras.Input((4, 4, 3))
    return keras.Model(inputs, layers.Conv2D(3, 3, padding="same")(norm()(layers.Conv2D(3, 1)(inputs))))

def everything(x):
    masked = layers.GlobalAveragePooling1D()(norm()(layers.Masking()(layers.Reshape((16, 3))(x))))
    x = rematerialize(block())(keras.Sequential([block(), layers.SpectralNormalization(layers.Conv2D(3, 1))])(x))
    x = norm(axis=1)(norm(renorm=True)(x))
    return layers.Concatenate()([masked, layers.Flatten()(x)])

def quiet(x):
    frozen = norm()
    frozen.trainable = False
    return layers.Flatten()(norm(synchronized=True)(frozen(x)))

def built(hidden, num_replicas, synchronize=True, jit_compile=False):
    one = tf.distribute.get_strategy()
    devices = [f"CPU:{i}" for i in range(num_replicas)]
    strategy = one if num_replicas == 1 else tf.distribute.MirroredStrategy(devices)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        x = keras.Input((4, 4, 3))
        model = Listed() if hidden is None else keras.Model(x, layers.Dense(2, name="head")(hidden(x)))
        if synchronize and num_replicas > 1:
            synchronize_batch_norm(model)
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"], jit_compile=jit_compile)
    return model

def trained(hidden, num_replicas, **options):
    model = built(hidden, num_replicas, **options)
    how = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0, "exact_kernels": True}
    history = tfaccel.fit(model, X, Y, **how).history
    return history["loss"] + history["mae"], model

def difference(hidden, num_replicas):
    (numbers, model), (others, other) = trained(hidden, 1), trained(hidden, num_replicas)
    weights = zip(model.weights, other.weights, strict=True)
    found = [np.abs(np.array(numbers) - np.array(others)).max()]
    return float(max(found + [np.abs(a.numpy() - b.numpy()).max() for a, b in weights]))
"""


@pytest.mark.slow
def test_synchronized_statistics_are_those_of_one_device(run_python):
    # The last batch has a single row, which the second replica borrows.
    in_float64 = "import keras; keras.config.set_floatx('float64'); keras.config.set_dtype_policy('float64')"
    code = "print(json.dumps([difference(everything, 2), difference(None, 2), said]))"
    lines = run_python(in_float64 + PROGRAM + code, timeout_seconds=500).stdout.splitlines()
    everything, listed, said = json.loads(lines[-1])
    assert everything < 1e-12  # float32's rounding differs between processors
    assert listed < 1e-12
    assert said == []


@pytest.mark.slow
def test_more_layers_and_replicas(run_python):
    code = """
again = lambda x: layers.Flatten()(layers.TimeDistributed(norm())(norm(synchronized=True)(x)))
print(json.dumps([difference(everything, 3), difference(again, 3), difference(quiet, 2)]))
"""
    assert max(json.loads(run_python(PROGRAM + code, timeout_seconds=550).stdout.splitlines()[-1])) < 1e-5


@pytest.mark.slow
def test_what_is_not_synchronized_is_said_once_before_the_first_step(run_python):
    code = """
alone = lambda x: layers.Flatten()(norm(name="alone")(x))
_, model = trained(alone, 2, synchronize=False)
tfaccel.fit(model, X, Y, batch_size=4, verbose=0)
first = list(said)
trained(quiet, 2, synchronize=False)
silence = said[len(first):]
trained(lambda x: layers.Flatten()(OwnCall(name="own_call")(x)), 2)
get_engine(built(alone, 2, jit_compile=True)).get_steps("train")
print(json.dumps([first, silence, said[len(first):], built(alone, 2).get_layer("alone").synchronized]))
"""
    child = run_python(PROGRAM + code, timeout_seconds=500)
    first, silence, later, is_changed = json.loads(child.stdout.splitlines()[-1])
    assert len(first) == 1
    assert "With 2 replicas, batch normalization (alone) takes its statistics over the rows of one replica" in first[0]
    assert "Use BatchNormalization(synchronized=True), or synchronize_batch_norm=True in a plan." in first[0]
    assert silence == []
    assert "batch normalization (own_call)" in later[0]
    assert "They override `call`" in later[0]
    assert "XLA stays off for training: synchronized batch normalization (alone)" in later[1]
    assert "synchronize_batch_norm=False in the plan" in later[1]
    assert not is_changed  # layers keep their original configuration when saved


def test_weighted_examples_need_no_second_forward_pass(run_python):
    code = """
class Counted(layers.Layer):
    traced = 0

    def call(self, x):
        Counted.traced += 1
        return x

def weighted(num_replicas):
    model = built(lambda x: layers.Flatten()(norm()(Counted()(x))), num_replicas)
    Counted.traced = 0
    options = {"batch_size": 5, "epochs": 2, "shuffle": False, "verbose": 0, "exact_kernels": True}
    losses = tfaccel.fit(model, X[:20], Y[:20], sample_weight=1.0 + np.arange(20) % 3, **options).history["loss"]
    return losses, Counted.traced

print(json.dumps([weighted(1), weighted(2)]))
"""
    (losses, traced), (others, traced_on_two) = json.loads(run_python(PROGRAM + code).stdout.splitlines()[-1])
    assert losses == pytest.approx(others, rel=1e-5)
    assert (traced, traced_on_two) == (1, 3)  # on two, for each replica and for the step of one device
