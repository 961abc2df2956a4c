"""References to objects in files: processes share the arrays, and write to copies of their own."""

import functools
import json
import threading

import numpy as np
import pytest

from tfaccel.errors import WorkloadError
from tfaccel.planning.reference import Reference, get_signature
from tfaccel.planning.workload import Workload


def total(array, weights=None):
    return array.sum()


def test_arrays_in_files_are_mapped_not_copied(tmp_path):
    array, weights = np.arange(1_000_003, dtype="float32"), np.ones(7)
    function = functools.partial(total, array, weights=weights)
    reference = Reference.by_file(function, "workload", by_value=False, file=tmp_path / "it")
    first, second = reference.load(), reference.load()
    np.testing.assert_array_equal(first.args[0], array)
    np.testing.assert_array_equal(first.keywords["weights"], weights)
    assert not first.args[0].flags.owndata
    first.args[0][:] = 0
    assert first() == 0
    assert second() == array.sum()
    assert (tmp_path / "it").stat().st_size < array.nbytes + 1_000


def test_definitions_that_only_this_process_has(tmp_path):
    array = np.arange(5.0)
    reference = Reference.by_file(lambda: array.sum(), "workload", by_value=True, file=tmp_path / "it")
    assert reference.load()() == 10


LOADED = """
import json, sys
from tfaccel.planning.reference import Reference
from tfaccel.planning.reference import get_signature
workload = Reference(kind="file", text=sys.argv[1]).load()
signatures = [get_signature(workload.build_model), get_signature(workload.compile_args)]
late = "tensorflow" not in sys.modules
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)  # refused once TensorFlow has started
weights = [weight.tolist() for weight in workload.build_model().get_weights()]
print(json.dumps([late, signatures, weights, type(workload.compile_args()["optimizer"]).__name__]))
"""


def test_keras_objects_are_loaded_when_they_are_needed(tmp_path, logical_devices, run_python):
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), "mse")
    workload = Workload.of(model, np.zeros((8, 2)), np.zeros(8))
    Reference.by_file(workload, "workload", by_value=False, file=tmp_path / "it")
    found = json.loads(run_python(LOADED, str(tmp_path / "it"), fresh=True).stdout.splitlines()[-1])
    signatures = [get_signature(workload.build_model), get_signature(workload.compile_args)]
    assert found == [True, signatures, [weight.tolist() for weight in model.get_weights()], "Adam"]


def test_what_cannot_be_sent_is_named(tmp_path):
    lock = threading.Lock()
    with pytest.raises(
        WorkloadError, match=r"The workload partial cannot be sent to worker processes: .*lock.* Define"
    ):
        Reference.by_file(functools.partial(total, lock), "workload", by_value=False, file=tmp_path / "it")
    assert not (tmp_path / "it").exists()
