"""`Runtime` applies the plan, restores what it can, and raises clear errors otherwise."""

import json

import pytest

from tfaccel.errors import PlanError
from tfaccel.hardware.cluster import tf_config
from tfaccel.hardware.hardware import Cluster

RESTORED = """
import json, os, random, sys
os.environ["MARK"] = "before"
from tfaccel import Plan, Runtime
assert "tensorflow" not in sys.modules
environment = dict(os.environ)
found = {}
plan = Plan(strategy="mirrored", devices=("CPU:0", "CPU:1"), num_logical_cpus=2, global_batch_size=8,
            dtype_policy="mixed_bfloat16", intra_op_threads=2, inter_op_threads=1, onednn=True)
random.seed(5)
before = random.getstate()
runtime = Runtime(plan, seed=3)
import numpy as np
np.random.seed(5)
numpy_before = np.random.get_state()[1].tolist()
with runtime:
    import keras, tensorflow as tf
    found["inside"] = [
        keras.config.dtype_policy().name, runtime.strategy.num_replicas_in_sync, keras.backend.backend(),
        len(tf.config.list_logical_devices("CPU")), tf.config.threading.get_intra_op_parallelism_threads(),
        tf.config.threading.get_inter_op_parallelism_threads(), random.getstate() != before,
    ]
    from tfaccel.training.private.private_start import uses_onednn
    found["oneDNN"] = uses_onednn()
    first = [random.random(), float(np.random.rand()), float(tf.random.uniform([])), float(keras.random.uniform([]))]
    os.environ["MARK"] = "inside"
    os.environ["NEW"] = "inside"
kept = {name: os.environ.get(name) for name in [*environment, "NEW"]}
found["environment"] = kept == {**environment, "NEW": None}
found["policy"] = keras.config.dtype_policy().name
found["random"] = [random.getstate() == before, np.random.get_state()[1].tolist() == numpy_before]
with Runtime(plan, seed=3):
    again = [random.random(), float(np.random.rand()), float(tf.random.uniform([])), float(keras.random.uniform([]))]
found["seeded"] = first == again
names = [keras.layers.Dense(1).name]
with Runtime(plan):
    names.append(keras.layers.Dense(1).name)
found["names"] = [*names, keras.layers.Dense(1).name]

def error(**fields):
    try:
        with Runtime(Plan(**{"strategy": "none", "devices": ("CPU:0",), "global_batch_size": 8, **fields})):
            return "no error"
    except Exception as error:
        return f"{type(error).__name__}: {error}"

found["none"] = error()
found["more devices"] = error(strategy="mirrored", devices=("CPU:0", "CPU:1", "CPU:2", "CPU:3"), num_logical_cpus=4)
found["same threads"] = error(intra_op_threads=2)
found["other threads"] = error(intra_op_threads=1)
import io, logging
warned = io.StringIO()
logging.getLogger("tfaccel").addHandler(logging.StreamHandler(warned))
by_rule = (("intra_op_threads", "This process may use 1 of 2 cores."),)
found["threads by rule"] = [error(intra_op_threads=1, reasons=by_rule), warned.getvalue()]
found["without oneDNN"] = error(onednn=False)
found["late clustering"] = error(xla_auto_clustering=True)
found["GPU"] = error(devices=("GPU:0",))
keras.config.set_dtype_policy("float32")
try:
    with Runtime(plan):
        raise KeyError("inside")
except KeyError:
    found["after an error"] = keras.config.dtype_policy().name
print(json.dumps(found))
"""

GRAPH_REWRITES = """
import dataclasses, json, os
from tfaccel import Plan, Runtime
plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, xla_auto_clustering=True, grappler_bfloat16=True)
found = []
def note(optimizer):
    found.append([optimizer.get_jit(), optimizer.get_experimental_options().get(NAME, False)])
NAME = "auto_mixed_precision_onednn_bfloat16"
with Runtime(plan):
    import tensorflow as tf
    note(tf.config.optimizer)
    found.append(os.environ["TF_XLA_FLAGS"])
note(tf.config.optimizer)
found.append("TF_XLA_FLAGS" in os.environ)
with Runtime(plan):
    note(tf.config.optimizer)
with Runtime(dataclasses.replace(plan, xla_auto_clustering=False, grappler_bfloat16=False)):
    note(tf.config.optimizer)
print(json.dumps(found))
"""

OTHER_BACKEND = """
import sys, types
from tfaccel import Plan, Runtime
keras = types.ModuleType("keras")
keras.backend = types.SimpleNamespace(backend=lambda: "jax")
sys.modules["keras"] = keras
try:
    with Runtime(Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)):
        print("no error")
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def found(run_python):
    return json.loads(run_python(RESTORED, fresh=True).stdout.splitlines()[-1])


def test_plan_is_set_up(found):
    assert found["inside"] == ["mixed_bfloat16", 2, "tensorflow", 2, 2, 1, True]


def test_globals_are_put_back(found):
    assert found["environment"]
    assert found["policy"] == "float32"
    assert found["random"] == [True, True]
    assert found["after an error"] == "float32"


def test_seed_decides_all_generators(found):
    assert found["seeded"]


def test_layers_are_named_as_in_a_new_process(found):
    """TensorFlow's graph optimizer orders operations by name, so names affect the last bits of a result."""
    assert found["names"] == ["dense", "dense", "dense_1"]


def test_onednn_is_decided_before_tensorflow_is_loaded(found):
    assert found["oneDNN"]
    assert found["without oneDNN"] == (
        "PlanError: The plan has onednn=False, but this process has loaded TensorFlow without it. Set the environment "
        "variable TF_ENABLE_ONEDNN_OPTS=0 before Python starts, or use onednn=None."
    )


def test_clustering_on_cpus_is_decided_before_tensorflow_is_loaded(found):
    assert found["late clustering"] == (
        "PlanError: The plan has xla_auto_clustering=True, but this process has loaded TensorFlow without it. Set the "
        "environment variable TF_XLA_FLAGS=--tf_xla_cpu_global_jit before Python starts, or use "
        "xla_auto_clustering=False."
    )


def test_graph_rewrites_are_set_and_undone(run_python):
    found = json.loads(run_python(GRAPH_REWRITES, fresh=True).stdout.splitlines()[-1])
    on, off = ["autoclustering", True], ["", False]
    flags = found.pop(1).split()
    assert flags[0] == "--tf_xla_cpu_global_jit" and flags[1].startswith("--tf_xla_persistent_cache_directory=")
    assert found == [on, off, False, on, off]


def test_second_runtime_in_one_process(found):
    assert found["none"] == "no error"
    assert found["same threads"] == "no error"
    started = (
        "but TensorFlow has already started in this process and cannot change that. Start a new process; there, give"
    )
    assert found["more devices"].startswith(f"PlanError: The plan needs 4 logical CPUs, {started}")
    assert found["other threads"].startswith(f"PlanError: The plan needs 1 threads inside one operation, {started}")


def test_threads_that_a_rule_chose_are_no_reason_to_refuse_a_model_that_is_already_built(found):
    outcome, warned = found["threads by rule"]
    assert outcome == "no error"
    assert warned == (
        "TensorFlow has already started in this process and keeps its own number of threads inside one operation; "
        "the plan has 1.\n"
    )


def test_missing_gpu_is_named(found):
    said = "PlanError: The plan uses GPU:0, but TensorFlow sees no GPU. Choose available --devices"
    assert found["GPU"].startswith(said)
    assert "tfaccel doctor" in found["GPU"]


def test_other_backend_is_refused(run_python):
    text = run_python(OTHER_BACKEND, fresh=True).stdout.splitlines()[-1]
    assert text.startswith("PlanError Keras runs on the backend 'jax'; tfaccel trains on TensorFlow.")
    assert "KERAS_BACKEND=tensorflow" in text


def cluster(**fields):
    return Cluster(**{"source": "tf_config", "num_workers": 2, "task_index": 1, "addresses": ("a:1", "b:2"), **fields})


def test_cluster_becomes_tf_config():
    assert tf_config(cluster()) == {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}


def test_unknown_addresses_are_refused():
    with pytest.raises(PlanError, match=r"has 2 workers, but 0 addresses are known. Set TF_CONFIG for each worker"):
        tf_config(cluster(source="slurm", addresses=()))
