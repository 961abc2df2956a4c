"""The notebooks' three lines on Keras's JAX backend: run on the CPU, where JAX is installed."""

import importlib.util
import json
from dataclasses import asdict

import pytest

from tfaccel import Plan, Workload
from tfaccel.errors import PlanError
from tfaccel.tpu.jax_training import train_on_jax
from tfaccel.tpu.preflight import NotebookRuntime
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
from tfaccel.tpu.preflight import NotebookRuntime

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


def test_another_backend_is_refused(logical_devices, tmp_path):
    workload = Workload("made_up", object, dict, lambda *args, **kwargs: None, global_batch_size=8)
    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)
    with pytest.raises(PlanError, match=r"backend 'tensorflow', not on 'jax'.*KERAS_BACKEND=jax before"):
        train_on_jax(workload, plan, run_dir=tmp_path / "run", epochs=1)
    assert not (tmp_path / "run").exists()
