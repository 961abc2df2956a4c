"""The notebooks' three lines on Keras's JAX backend: run on the CPU, where JAX is installed."""

import importlib.util
import json
from dataclasses import asdict

import pytest

from tfaccel import Plan, Workload
from tfaccel.errors import PlanError
from tfaccel.extras.tpu.jax_training import train_on_jax
from tfaccel.extras.tpu.preflight import NotebookRuntime
from tfaccel.training.run.result import TrainResult

RUNTIME = NotebookRuntime(
    kind="TPU",
    reason="made up",
    plan_fields={"strategy": "none", "devices": ("CPU:0",), "jit_compile": False, "dtype_policy": "mixed_bfloat16"},
    environ={"KERAS_BACKEND": "jax"},
)
NOTEBOOK = """
import json, os, sys, warnings

# As on its TensorFlow backend (see filterwarnings in setup.cfg), Keras reads variables with an old `__array__`.
warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning, "keras.src.backend")
from tfaccel.extras.tpu.preflight import NotebookRuntime

runtime = NotebookRuntime(**json.loads(sys.argv[1]))
os.environ.update(runtime.environ)
import tfaccel
from tfaccel.recipes import image_classification

workload = image_classification.workload()
plan = tfaccel.default_plan(tfaccel.detect_hardware(), workload, **runtime.plan_fields)
result = runtime.train(workload, plan, run_dir="run", epochs=3, resume="auto", verbose=0)

image_classification.show_result(workload, result)
again = runtime.train(workload, plan, run_dir="run", epochs=3, resume="auto", verbose=0)
import keras
print(json.dumps([keras.backend.backend(), keras.config.dtype_policy().name, again == result]))
"""
DIVIDED = """
import contextlib, dataclasses, json, warnings

warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning, "keras.src.backend")
import keras, numpy as np, tensorflow as tf
import tfaccel
from tfaccel.extras.tpu.jax_training import train_on_jax
from tfaccel.extras.tpu.jax_training import model_parallel

rng = np.random.default_rng(0)
x, y, models = rng.normal(size=(96, 20)).astype("float32"), rng.integers(0, 4, 96), []

def build_model():
    layers = [keras.layers.Dense(32, activation="relu", name="up"), keras.layers.Dense(16, name="down")]
    models.append(keras.Sequential([keras.Input((20,)), *layers, keras.layers.Dense(4)]))
    return models[-1]

def train_data(size, **_):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(size, drop_remainder=True)

workload = tfaccel.Workload(
    "made_up",
    build_model,
    lambda: {"optimizer": "adam", "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
    train_data,
    validation_data=lambda size: tf.data.Dataset.from_tensor_slices((x[:49], y[:49])).batch(size),
    global_batch_size=16,
)
plan = tfaccel.Plan(strategy="none", devices=("CPU:0",), global_batch_size=16)

def train(name, *shards):
    with model_parallel(*shards) if shards else contextlib.nullcontext():
        result = train_on_jax(workload, plan, run_dir=name, epochs=2, verbose=0)
    variables = [*models[-1].variables, *models[-1].optimizer.variables]
    shapes = [one.value.sharding.shard_shape(one.value.shape) for one in variables if "up" in one.path]
    return [*result.history["loss"], *result.history["val_loss"]], sorted(set(shapes))

def refusal(*shards):
    try:
        train("refused", *shards)
    except tfaccel.TfaccelError as error:
        return str(error)

by_path = {".*up/kernel": ("model", None), ".*up/bias": ("model",)}
ways = [(), (4,), (4, {".*up/kernel": ("model", None)})]
wrong = [(3,), (4, {".*up/kernel": ("model",)}), (4, {"up/kernel": ("model", None)}), (2,)]
trained = [train(f"run{number}", *way) for number, way in enumerate(ways)]
refused = [refusal(*shards) for shards in wrong]
workload = dataclasses.replace(workload, validation_data=lambda size: train_data(size))
two_groups = train("two", 2, by_path), train("alone")
print(json.dumps([trained, refused, two_groups]))
"""
NEEDS_JAX = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")


@NEEDS_JAX
def test_a_recipe_trains_by_plain_fit(run_python, tmp_path):
    environ = {"JAX_PLATFORMS": "cpu"}
    child = run_python(NOTEBOOK, json.dumps(asdict(RUNTIME)), cwd=tmp_path, env=environ, fresh=True)
    assert json.loads(child.stdout.splitlines()[-1]) == ["jax", "float32", True]
    result = TrainResult.from_json(json.loads((tmp_path / "run/result.json").read_text()))
    assert result.final["accuracy"] > 0.9
    assert len(result.history["val_accuracy"]) == 3
    assert result.history["loss"][2] < result.history["loss"][0]
    assert result.examples_per_second > 0 and 0 < result.step_seconds["median"] <= result.first_step_seconds
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"model.keras", "metrics.jsonl", "plan.json", "predictions.png"} <= left


@NEEDS_JAX
def test_weights_and_slots_are_divided_among_devices(run_python, tmp_path):
    environ = {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    child = run_python(DIVIDED, cwd=tmp_path, env=environ, fresh=True)
    trained, refusals, two_groups = json.loads(child.stdout.splitlines()[-1])
    assert [one[1] for one in trained] == [[[20, 32], [32]], [[20, 8], [32]], [[5, 32], [32]]]
    assert [one[1] for one in two_groups] == [[[10, 32], [16]], [[20, 32], [32]]]
    for (losses, _), (expected, _) in ((trained[1], trained[0]), (trained[2], trained[0]), two_groups):
        assert losses == pytest.approx(expected, abs=1e-6)
    assert refusals[0].startswith("`num_shards` must divide the number of devices. Received: num_shards=3, 4")
    assert refusals[1].startswith("A layout must have an axis for each axis of its variable, and divide it evenly.")
    assert refusals[2].startswith("No variable has a path that matches the layout 'up/kernel' as a whole")
    assert refusals[3].startswith("2 groups of devices share each batch, and cannot divide one of 1 rows")
    assert not (tmp_path / "refused").exists()


def test_dividing_weights_needs_jax(logical_devices):
    from tfaccel.extras.tpu.jax_training import model_parallel

    with (
        pytest.raises(PlanError, match=r"which ignores `keras\.distribution`"),
        model_parallel(2),
    ):
        pass


def test_another_backend_is_refused(logical_devices, tmp_path):
    workload = Workload("made_up", object, dict, lambda *args, **kwargs: None, global_batch_size=8)
    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)
    with pytest.raises(PlanError, match=r"backend 'tensorflow', not on 'jax'.*KERAS_BACKEND=jax before"):
        train_on_jax(workload, plan, run_dir=tmp_path / "run", epochs=1)
    assert not (tmp_path / "run").exists()
