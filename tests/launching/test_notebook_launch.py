"""Functions of a notebook on several workers: they train together, and failures come back with their traceback."""

import json
from pathlib import Path

import pytest

from tfaccel.errors import LaunchError
from tfaccel.launching.notebook_launch import notebook_launch

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


def test_workers_get_what_the_notebook_defined():
    words = {"greeting": "hello"}

    def told(name):
        import os

        return words["greeting"], name, json.loads(os.environ["TF_CONFIG"])["task"], len(os.sched_getaffinity(0)) >= 1

    assert notebook_launch(told, ["you"]) == ("hello", "you", {"type": "worker", "index": 0}, True)


def test_failure_comes_back_with_its_traceback():
    def fails():
        import os

        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
            raise ValueError("no such label")

    with pytest.raises(LaunchError, match=r"(?s)Worker 1 of 2 failed:\nTraceback .*ValueError: no such label"):
        notebook_launch(fails)


def test_killed_worker_is_named():
    def killed():
        import os

        os.kill(os.getpid(), 9)

    with pytest.raises(LaunchError, match=r"Worker [01] of 2 was killed by SIGKILL"):
        notebook_launch(killed)


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
