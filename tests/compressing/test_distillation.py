"""Distillation: the loss is the formula's, under every strategy; runs resume; the student alone is saved."""

import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent

SETUP = """
import json, sys, tempfile
from dataclasses import replace
from pathlib import Path
import numpy as np
import tensorflow as tf
from tfaccel import Plan, train
from tfaccel.compressing.distillation import distill
from tfmot_workload import BATCH, rows, workload

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
folder = Path(sys.argv[1])
ON_ONE = Plan(strategy="none", devices=("CPU:0",), global_batch_size=BATCH, num_logical_cpus=2)
ON_TWO = replace(ON_ONE, strategy="mirrored", devices=("CPU:0", "CPU:1"))

def network(width, **last):
    import keras
    layers = [keras.layers.Flatten(), keras.layers.Dense(width, "relu"), keras.layers.Dense(4, name="logits", **last)]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers])

small = workload(build=lambda: network(3))
"""

STRATEGIES = """
teacher_run = train(workload(build=lambda: network(64)), ON_ONE, run_dir=folder / "teacher", epochs=6, verbose=0)
taught = distill(small, folder / "teacher", temperature=3.0, alpha=0.7)
one = train(taught, ON_ONE, run_dir=folder / "one", epochs=3, verbose=0)
two = train(taught, ON_TWO, run_dir=folder / "two", epochs=3, verbose=0)
xla = train(taught, replace(ON_ONE, jit_compile=True), run_dir=folder / "xla", epochs=3, verbose=0)
plain = train(small, ON_ONE, run_dir=folder / "plain", epochs=3, verbose=0)
import keras
student = keras.models.load_model(folder / "one" / "model.keras")

def log_softmax(logits):
    logits = logits - logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

x, y = rows(1)
teacher = keras.models.load_model(folder / "teacher" / "model.keras")
t, s = log_softmax(teacher.predict(x, verbose=0) / 3.0), log_softmax(student.predict(x, verbose=0) / 3.0)
soft = 9.0 * (np.exp(t) * (t - s)).sum(axis=1).mean()
labels = y * 0.95 + 0.05 / 4
hard = -(labels * log_softmax(student.predict(x, verbose=0))).sum(axis=1).mean()
print(json.dumps({
    "one": one.history["loss"], "two": two.history["loss"], "xla": xla.history["loss"], "plain": plain.history["loss"],
    "final": one.final["loss"], "formula": float(0.3 * hard + 0.7 * soft), "class": type(student).__name__,
    "parameters": student.count_params(), "options": dict(taught.options),
}))
"""

RESUMED = """
import keras
keras.utils.set_random_seed(3)
network(16, activation="softmax").save(folder / "teacher.keras")
taught = distill(small, folder / "teacher.keras")

class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) >= 11:
            raise KeyboardInterrupt

whole = train(taught, ON_ONE, run_dir=folder / "whole", epochs=2, checkpoint_interval=3, verbose=0)
try:
    train(taught, ON_ONE, run_dir=folder / "parts", epochs=2, checkpoint_interval=3, verbose=0, callbacks=[Stop()])
except KeyboardInterrupt:
    pass
parts = train(taught, ON_ONE, run_dir=folder / "parts", epochs=2, checkpoint_interval=3, resume="auto", verbose=0)
weights = [keras.models.load_model(folder / name / "model.keras").get_weights() for name in ("whole", "parts")]

def refusal(*arguments, **options):
    from tfaccel.errors import TfaccelError
    try:
        train(distill(*arguments, **options), ON_ONE, run_dir=folder / "refused", epochs=1, verbose=0)
    except TfaccelError as error:
        return str(error)
    return "none"

network(16).save(folder / "other.keras")
keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(7)]).save(folder / "seven.keras")
(folder / "broken.keras").write_text("no model")
try:
    train(distill(small, folder / "other.keras"), ON_ONE, run_dir=folder / "parts", epochs=2, checkpoint_interval=3,
          resume="auto", verbose=0)
    other = "none"
except Exception as error:
    other = str(error)
print(json.dumps({
    "equal": all(np.array_equal(a, b) for a, b in zip(*weights)), "history": whole.history == parts.history,
    "other": other, "missing": refusal(small, folder / "nothing"), "seven": refusal(small, folder / "seven.keras"),
    "broken": refusal(small, folder / "broken.keras"), "loss": refusal(workload(loss="mse"), folder / "other.keras"),
    "alpha": refusal(small, folder / "other.keras", alpha=0.0),
    "temperature": refusal(small, folder / "other.keras", temperature=-1.0),
}))
"""


def run(run_python, code, folder):
    child = run_python(SETUP + code, str(folder), cwd=HERE)
    return json.loads(child.stdout.splitlines()[-1])


@pytest.mark.slow
def test_loss_is_the_formula_under_every_strategy(run_python, tmp_path):
    found = run(run_python, STRATEGIES, tmp_path)
    assert found["two"] == pytest.approx(found["one"], rel=1e-5)
    assert found["xla"] == pytest.approx(found["one"], rel=1e-5)
    assert found["plain"] != pytest.approx(found["one"], rel=0.01)
    assert found["final"] == pytest.approx(found["formula"], rel=1e-4)
    assert found["class"] == "Sequential"
    assert found["parameters"] == 64 * 3 + 3 + 3 * 4 + 4
    assert found["options"]["distill_alpha"] == 0.7
    assert len(found["options"]["teacher_sha256"]) == 64


@pytest.mark.slow
def test_run_resumes_to_the_same_bits_and_bad_teachers_are_refused(run_python, tmp_path):
    found = run(run_python, RESUMED, tmp_path)
    assert found["equal"]
    assert found["history"]
    assert "holds another run: options.teacher_sha256 is" in found["other"]
    assert "There is no teacher" in found["missing"]
    assert "The teacher gives [(7,)], the student [(4,)]" in found["seven"]
    assert "broken.keras is not a model in Keras" in found["broken"]
    assert "cannot learn from a teacher: its loss is 'mse'" in found["loss"]
    assert "distill_alpha must be above 0 and at most 1. Received: 0.0" in found["alpha"]
    assert "distill_temperature must be a number above 0. Received: -1.0" in found["temperature"]
