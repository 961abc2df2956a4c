"""Measured times set only the number of steps per call; results do not depend on the machine's speed or load."""

import json

import pytest

CODE = """
import hashlib, json, subprocess, sys
import keras
import numpy as np
import tensorflow as tf
import tfaccel
from tfaccel import Plan, Workload, train
from tfaccel.training.steps import windows

folder = sys.argv[1]
ROWS = np.random.default_rng(0).standard_normal((96, 8, 8, 3)).astype("float32")
LABELS = np.arange(96) % 4

def build_model():
    layers = keras.layers
    return keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(16, 3), layers.BatchNormalization(), layers.ReLU(),
                             layers.Flatten(), layers.Dropout(0.2), layers.Dense(4)])

def compile_args(num_steps):
    rate = keras.optimizers.schedules.CosineDecay(0.05, num_steps)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return {"optimizer": keras.optimizers.SGD(rate, momentum=0.9), "loss": loss}

def train_data(size, *, seed, epoch):
    order = np.random.default_rng([seed, epoch]).permutation(len(ROWS))
    return tf.data.Dataset.from_tensor_slices((ROWS[order], LABELS[order])).batch(size)

def validation_data(size):
    return tf.data.Dataset.from_tensor_slices((ROWS, LABELS)).batch(size)

work = Workload("rows", build_model, compile_args, train_data, validation_data, global_batch_size=8, epochs=3)
plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)

def digest(model, history):
    found = hashlib.sha256(json.dumps(history).encode())
    for weight in model.get_weights():
        found.update(weight.tobytes())
    return found.hexdigest()

def of_train(name):
    result = train(work, plan, run_dir=f"{folder}/{name}", verbose=0)
    return digest(keras.models.load_model(f"{folder}/{name}/model.keras"), result.history)

def of_fit(name):
    keras.utils.set_random_seed(1)
    model = build_model()
    model.compile(**compile_args(36))
    return digest(model, tfaccel.fit(model, ROWS, LABELS, batch_size=8, epochs=3, verbose=0).history)

class Clock:
    # Each step appears to take this long.
    def __init__(self, seconds):
        self.now, self.seconds = 0.0, seconds

    def perf_counter(self):
        self.now += self.seconds
        return self.now

def digests(name):
    return [of_train(name), of_fit(name)]

found = {"idle": digests("idle")}
busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(int(sys.argv[2]))]
try:
    if busy:
        found["busy"] = digests("busy")
finally:
    for one in busy:
        one.kill()
        one.wait()
for name, seconds in {"slow": 10.0, "fast": 1e-7}.items():
    windows.time = Clock(seconds)
    found[name] = digests(name)
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("num_busy", [0, 4])
def test_a_clock_changes_no_number(run_python, tmp_path, num_busy):
    found = json.loads(run_python(CODE, tmp_path, num_busy).stdout.splitlines()[-1])
    assert list(found) == ["idle", *(["busy"] if num_busy else []), "slow", "fast"]
    assert all(digests == found["idle"] for digests in found.values())


SINGLE = """
import numpy as np, keras
from tfaccel.training.steps.engine import EngineOptions, get_engine
from tfaccel.training.steps.windows import WindowLength

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
lengths = {}
for single in (False, True):
    engine = get_engine(model, EngineOptions(single_steps=single))
    length = WindowLength(engine, "train", [])
    lengths[single] = (length.loops, length.is_fixed, length.next(0, None))
assert lengths == {False: (True, False, 1), True: (False, True, 1)}, lengths
model.steps_per_execution = 3
length = WindowLength(get_engine(model, EngineOptions(single_steps=True)), "train", [])
assert (length.loops, length.next(0, None)) == (True, 3)
"""


def test_single_steps_have_no_loop(run_python):
    run_python(SINGLE)
