"""The whole step on each replica, as on a TPU: compared on two logical CPUs with plain Keras on one device."""

import json

import pytest

CODE = """
import contextlib, json
import keras, numpy as np, tensorflow as tf
from tfaccel.data.sources import ArraySource, IteratorSource
from tfaccel.training.private import private_models
from tfaccel.training.steps.engine import EngineOptions, get_engine

split = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], split)
random = np.random.default_rng(0)
X = random.normal(size=(45, 6)).astype("float32")
Y = (X[:, :2] * 2).astype("float32")
W = random.uniform(0.2, 3, size=(45,)).astype("float32")
IDS = random.integers(0, 5, size=(45, 3)).astype("int32")
IDS[:, 2] = 0  # padding
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
found = {}

def dense():
    hidden = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")
    return keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(2)])

def embedding():
    layers = [keras.layers.Embedding(5, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input((3,), dtype="int32"), *layers])

def masked():
    layers = [keras.layers.Embedding(5, 4, mask_zero=True), keras.layers.LSTM(4, return_sequences=True)]
    return keras.Sequential([keras.Input((3,), dtype="int32"), *layers, keras.layers.Dense(2)])

class OwnStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)
    def call(self, x):
        return self.dense(x)
    def train_step(self, data):
        x, y, *_ = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return {"own": loss}

def compiled(build, optimizer, scope, **arguments):
    keras.utils.set_random_seed(1)
    with scope:
        model = build()
        model.compile(optimizer(), "mse", **arguments)
    return model

def batches(parts, size=15):
    return tf.data.Dataset.from_tensor_slices(parts).batch(size, drop_remainder=True)

def engine_for(model, dataset):
    private_models.build_model(model, dataset.element_spec)
    return get_engine(model, EngineOptions(whole_step=True))

def run(engine, kind, dataset, passes=1):
    for _ in range(passes):
        engine.model.reset_metrics()
        source = IteratorSource(dataset, num_batches=3)
        feed = source.feed()
        feed.begin(None)
        logs = engine.run(kind, feed, 10).logs
        source.close()
    return {name: float(value) for name, value in logs.items()}

def compare(name, build, optimizer, parts, **arguments):
    # 15 rows are split into 8 and 7.
    dataset = batches(parts)
    one = compiled(build, optimizer, contextlib.nullcontext(), **arguments)
    private_models.build_model(one, dataset.element_spec)
    both = compiled(build, optimizer, strategy.scope(), **arguments)
    engine = engine_for(both, dataset)
    both.set_weights(one.get_weights())
    if name == "ema":  # `fit` would end with the averaged weights
        for batch in [*dataset, *dataset]:
            one.train_on_batch(*batch)
    else:
        history = one.fit(dataset, epochs=2, verbose=0, shuffle=False).history
    logs = run(engine, "train", dataset, passes=2)
    weights = max(float(np.abs(a - b).max()) for a, b in zip(one.get_weights(), both.get_weights(), strict=True))
    moved = max(float(np.abs(w).max()) for w in both.get_weights())
    differ = {} if name == "ema" else {k: abs(history[k][-1] - logs[k]) for k in logs}
    found[name] = [weights, max(differ.values(), default=0.0), sorted(logs), moved]
    found[name].append(int(both.optimizer.iterations.numpy()))
    return one, both, engine

SGD, Adam, AdamW = keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.AdamW
metrics = {"metrics": ["mae"], "weighted_metrics": ["mse"]}
compare("sgd", dense, lambda: SGD(0.1, momentum=0.9), (X, Y), **metrics)
one, both, engine = compare("sample weights", dense, lambda: Adam(1e-2), (X, Y, W), **metrics)
compare("clipnorm", dense, lambda: SGD(0.1, clipnorm=0.1), (X, Y))
compare("global_clipnorm", dense, lambda: Adam(1e-2, global_clipnorm=0.05), (X, Y))
compare("ema", dense, lambda: AdamW(1e-2, use_ema=True, ema_overwrite_frequency=2), (X, Y))
compare("accumulation", dense, lambda: Adam(1e-2, gradient_accumulation_steps=2), (X, Y))
compare("repeated embedding rows", embedding, lambda: SGD(0.1), (IDS, Y))
compare("masks", masked, lambda: SGD(0.1), (IDS, np.repeat(Y[:, None], 3, axis=1)))
compare("own step", OwnStep, lambda: SGD(0.1, clipnorm=0.1), (X, Y))

dataset = batches((X, Y, W))
expected = one.evaluate(dataset, verbose=0, return_dict=True)
logs = run(engine, "test", dataset)
found["evaluate"] = max(abs(expected[name] - logs[name]) for name in expected)
source = IteratorSource(batches(X), num_batches=3)
predicted = engine.predict(source.feed())
found["predict"] = float(np.abs(one.predict(X[:15], verbose=0) - predicted.numpy()).max())
source.close()

from tfaccel.training.evaluate import run_evaluation

# 45 rows in batches of 11: the last has one row, so one replica gets none. In batches of 14: the last has three.
TARGETS = np.repeat(Y[:, None], 3, axis=1)
for case, build, parts in (("weights", dense, (X, Y, W)), ("masks", masked, (IDS, TARGETS))):
    scopes = (contextlib.nullcontext(), strategy.scope())
    one, both = [compiled(build, lambda: SGD(0.1), scope, **metrics) for scope in scopes]
    one.evaluate(*parts[:2], verbose=0)
    private_models.build_model(both, batches(parts).element_spec)
    both.set_weights(one.get_weights())
    engine = get_engine(both, EngineOptions(whole_step=True))
    for size in (11, 14):
        dataset = tf.data.Dataset.from_tensor_slices(parts).batch(size)
        expected = one.evaluate(dataset, verbose=0, return_dict=True)
        predictions = one.predict(dataset, verbose=0)
        sources = {"iterator": IteratorSource(dataset, num_batches=None)}
        sources["arrays"] = ArraySource(tuple(map(tf.constant, parts)), global_batch_size=size)
        for kind, source in sources.items():
            logs = run_evaluation(engine, source, keras.callbacks.CallbackList(model=both))
            same = sorted(logs) == sorted(expected)
            found["remainder", case, size, kind] = max(abs(expected[k] - logs[k]) for k in logs) if same else repr(logs)
        source, rows = IteratorSource(dataset, num_batches=None), []
        feed = source.feed()
        while not feed.exhausted:
            rows.append(engine.predict(feed).numpy())
        source.close()
        found["remainder", case, size, "predict"] = float(np.abs(np.concatenate(rows) - predictions).max())
source = IteratorSource(dataset, num_batches=None)
feed = source.feed()
found["windows"] = [engine.run("test", feed, 10).num_steps for _ in range(2)]
source.close()
found["remainders"] = {" ".join(map(str, key)): found.pop(key) for key in list(found) if isinstance(key, tuple)}

def error(make):
    try:
        return make()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def with_batches(size, drop):
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(size, drop_remainder=drop)
    model = compiled(dense, lambda: SGD(0.1), strategy.scope())
    return run(engine_for(model, dataset), "train", dataset)

found["open sizes"] = error(lambda: with_batches(15, False))
found["too few rows"] = error(lambda: with_batches(1, True))
loss_scale = lambda: keras.optimizers.LossScaleOptimizer(SGD(0.1))
scaled = compiled(dense, loss_scale, strategy.scope())
found["loss scale"] = error(lambda: engine_for(scaled, batches((X, Y))).get_steps("train"))

def float8():
    model = dense()
    model.layers[-1].quantize("float8")
    return model

scales = compiled(float8, lambda: SGD(0.1), strategy.scope())
parts = batches((X, Y))
found["float8"] = error(lambda: run(engine_for(scales, parts), "train", parts))

class Noisy(SGD):
    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient + keras.random.normal(gradient.shape), variable, learning_rate)

noisy = compiled(dense, lambda: Noisy(0.1), strategy.scope())
found["noise"] = error(lambda: run(engine_for(noisy, parts), "train", parts))
print(json.dumps(found))
"""

COMPARED = {
    "sgd": ["loss", "mae", "mse"],
    "sample weights": ["loss", "mae", "mse"],
    "clipnorm": ["loss"],
    "global_clipnorm": ["loss"],
    "ema": ["loss"],
    "accumulation": ["loss"],
    "repeated embedding rows": ["loss"],
    "masks": ["loss"],
    "own step": ["own"],
}


@pytest.fixture(scope="module")
def found(run_python):
    return json.loads(run_python(CODE).stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARED)
def test_two_replicas_do_what_one_device_does(found, name):
    weights, logs, names, moved, num_steps = found[name]
    assert weights < 1e-5
    assert logs < 1e-5
    assert names == COMPARED[name]
    assert moved > 0.01
    assert num_steps == (3 if name == "accumulation" else 6)


@pytest.mark.slow
def test_evaluation_and_prediction_are_one_device_s(found):
    assert found["evaluate"] < 1e-5
    assert found["predict"] < 1e-5


@pytest.mark.slow
def test_a_last_batch_that_is_smaller_is_evaluated_as_on_one_device(found):
    assert len(found["remainders"]) == 12
    assert {name: value for name, value in found["remainders"].items() if value > 1e-5} == {}


@pytest.mark.slow
def test_batches_of_one_size_run_in_one_graph_call(found):
    assert found["windows"] == [3, 1]


@pytest.mark.slow
def test_training_batches_without_a_fixed_size_are_refused(found):
    assert found["open sizes"].startswith("DataError: On a TPU every batch must have a fixed number of rows")
    assert "drop_remainder=True" in found["open sizes"]
    too_few = "DataError: On a TPU every core needs rows to train on. Received: 1 rows for 2 cores."
    assert found["too few rows"].startswith(too_few)


@pytest.mark.slow
def test_a_loss_scale_is_refused(found):
    assert found["loss scale"].startswith("PlanError: model.optimizer is a LossScaleOptimizer.")
    assert "mixed_bfloat16" in found["loss scale"]


@pytest.mark.slow
def test_scales_of_float8_are_refused(found):
    assert "inputs_scale takes the value of its gradient, as the scales of float8 do" in found["float8"]


@pytest.mark.slow
def test_updates_with_other_random_numbers_on_each_replica_are_refused(found):
    assert "PlanError: The optimizer draws random numbers without a seed of its own" in found["noise"]
