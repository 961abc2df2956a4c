"""Functions of a notebook on several workers: they train together, and failures come back with their traceback."""

import json
import re
from pathlib import Path

import pytest

TRAINS = """
import json, sys
import numpy as np
import keras, tensorflow as tf
import tfaccel
from tfaccel.errors import LaunchError

x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")

def build_model():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
"""


FUNCTIONS = """
import json, os
from tfaccel import notebook_launch
from tfaccel.errors import LaunchError

words = {"greeting": "hello"}

def told(name):
    return words["greeting"], name, json.loads(os.environ["TF_CONFIG"])["task"], len(os.sched_getaffinity(0)) >= 1

def fails():
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
        raise ValueError("no such label")

def killed():
    os.kill(os.getpid(), 9)

def refusal(function):
    try:
        notebook_launch(function)
    except LaunchError as error:
        return str(error)

print(json.dumps([notebook_launch(told, ["you"]), refusal(fails), refusal(killed)]))
"""


def test_workers_know_what_the_notebook_has_defined_and_failures_come_back(run_python):
    result, failed, killed = json.loads(run_python(FUNCTIONS, fresh=True).stdout.splitlines()[-1])
    assert result == ["hello", "you", {"type": "worker", "index": 0}, True]
    assert failed.startswith("Worker 1 of 2 failed:\nTraceback (most recent call last):")
    assert failed.rstrip().endswith("ValueError: no such label")
    assert re.match("Worker [01] of 2 was killed by SIGKILL", killed)


@pytest.mark.slow
def test_notebook_trains_on_two_workers_as_on_one(run_python, tmp_path):
    code = (
        TRAINS
        + """
def trained(run_dir):
    options = {"optimizer": "sgd", "loss": "mse", "batch_size": 16, "epochs": 2}
    result = tfaccel.train(build_model, x, x[:, :1], run_dir=run_dir, verbose=0, **options)
    return [result.plan.strategy, result.history["loss"]]

two = tfaccel.notebook_launch(trained, ["two"], num_workers=2)
one = trained("one")
try:
    tfaccel.notebook_launch(trained, ["three"])
except LaunchError as error:
    refused = str(error)
print(json.dumps([two, one, refused]))
"""
    )
    two, one, refused = json.loads(run_python(code, fresh=True, cwd=tmp_path).stdout.splitlines()[-1])
    assert (two[0], one[0]) == ("multi_worker_mirrored", "none")
    assert two[1] == pytest.approx(one[1], rel=1e-5)
    assert "TensorFlow has already started in this notebook" in refused and "Restart the kernel" in refused
    assert Path(tmp_path / "two/model.keras").exists()
