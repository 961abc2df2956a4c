"""The wait for input: most of the time where the pipeline is slow, whether batches are read ahead or lie in memory."""

import pytest

CODE = """
import time
import keras
import tensorflow as tf
from tfaccel import Workload
from tfaccel.benchmarks.input_waits import input_waits

def workload(train_data):
    def build_model():
        return keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    return Workload("waits", build_model, lambda: {"optimizer": "sgd", "loss": "mse"}, train_data, global_batch_size=8)

def slow(size, *, seed, epoch):
    def row(number):
        pause = tf.py_function(lambda: time.sleep(0.05), [], [])
        with tf.control_dependencies([pause]):
            return tf.zeros((size, 8)), tf.zeros((size, 1))
    return tf.data.Dataset.range(5).map(row)

def in_memory(size, *, seed, epoch, num_epochs=1):
    x, y = tf.zeros((5 * num_epochs, size, 8)), tf.zeros((5 * num_epochs, size, 1))
    return tf.data.Dataset.from_tensor_slices((x, y))

waits = input_waits(workload(slow), repetitions=3)
assert len(waits) == 3 and all(0.3 < wait < 1.0 for wait in waits), waits
ready = input_waits(workload(in_memory), repetitions=2)
assert len(ready) == 2 and all(0.0 <= wait < 1.0 for wait in ready), ready
"""


@pytest.mark.slow
def test_slow_and_ready_input(run_python):
    run_python(CODE)
