"""What measures a workload in other processes says which data it cannot send to them."""

import re

import numpy as np
import pytest

from tfaccel.errors import WorkloadError
from tfaccel.measuring.find_fastest import find_fastest
from tfaccel.measuring.workload_task import load_task, make_task
from tfaccel.planning.workload import Workload

X = np.zeros((6, 2), "float32")


def dataset(*_, **__):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, X[:, 0])).batch(3)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path / "cache"))


def refused(name):
    return re.escape(
        "Models are measured in other processes, to which a tf.data.Dataset cannot be sent. Received: a "
        f"tf.data.Dataset as {name} of 'mine'. Pass arrays; or the import path of a function that returns "
        '(build_model, dataset), "package.module:function"; or a tfaccel.Workload whose train_data returns a dataset.'
    )


def test_datasets_are_refused(logical_devices):
    with pytest.raises(WorkloadError, match=f"^{refused('x')}$"):
        find_fastest(object, dataset(), loss="mse", name="mine")
    with pytest.raises(WorkloadError, match=refused("validation_data")):
        find_fastest(object, X, X[:, 0], validation_data=dataset(), batch_size=3, loss="mse", name="mine")
    made = Workload.of(object, dataset(), loss="mse", name="mine")
    with pytest.raises(WorkloadError, match=refused("x")):
        make_task(made, {})


def test_a_workload_that_makes_datasets_is_sent(tmp_path):
    given = Workload("mine", object, dict, dataset, dataset, global_batch_size=3)
    task = make_task(given, {}, made=given, folder=tmp_path)
    assert load_task(task) == given


def test_a_dataset_inside_a_function_is_named(logical_devices, tmp_path):
    held = dataset()
    given = Workload("mine", object, dict, lambda size, *, seed, epoch: held, global_batch_size=3)
    message = (
        "The workload mine cannot be sent to worker processes: it holds a tf.data.Dataset, which only the process that "
        "makes it has. Pass a function that creates it, defined at the top level of a module."
    )
    with pytest.raises(WorkloadError, match=f"^{re.escape(message)}$"):
        make_task(given, {}, made=given, folder=tmp_path)
