"""One iterator repeats only datasets for which this makes no visible difference."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfaccel.data.private_pipelines import passes_are_alike
from tfaccel.data.sources import DatasetSource, IteratorSource
from tfaccel.training.inputs import make_source
from tfaccel.training.steps.replicas import Replicas

pytestmark = pytest.mark.usefixtures("logical_devices")


@pytest.fixture(autouse=True)
def no_global_seed():
    """After `tf.random.set_seed`, a shuffled dataset has a seed."""
    tf.random.set_seed(None)


def rows():
    return tf.data.Dataset.from_tensor_slices((np.ones((8, 3), "float32"), np.ones(8, "float32")))


def with_variable():
    strength = tf.Variable(1.0)
    return rows().map(lambda x, y: (x * strength, y))


def with_table():
    keys = tf.lookup.KeyValueTensorInitializer([1, 2], [3, 4])
    table = tf.lookup.StaticHashTable(keys, 0)
    return rows().map(lambda x, y: (x, table.lookup(tf.cast(y, tf.int32))))


ALIKE = {
    "batches": lambda: rows().batch(2).prefetch(1),
    "functions": lambda: rows().map(lambda x, y: (x * 2.0, y), num_parallel_calls=2).batch(2, num_parallel_calls=2),
    "no seed": lambda: rows().shuffle(8).batch(2).take(3),
    "options": lambda: rows().with_options(tf.data.Options()).skip(1),
    "zip": lambda: tf.data.Dataset.zip((rows(), tf.data.Dataset.range(8))).concatenate(
        tf.data.Dataset.zip((rows(), tf.data.Dataset.range(8)))
    ),
}
OTHERS = {
    "seed": lambda: rows().shuffle(8, seed=1).batch(2),
    "random numbers": lambda: rows().map(lambda x, y: (x + tf.random.normal([3]), y)),
    "variable": with_variable,
    "table": with_table,
    "Python code": lambda: rows().map(lambda x, y: (tf.numpy_function(np.copy, [x], tf.float32), y)),
    "generator": lambda: tf.data.Dataset.from_generator(lambda: iter([1.0]), output_signature=tf.TensorSpec([])),
    "cache": lambda: rows().cache().batch(2),
    "files": lambda: tf.data.TextLineDataset(["a"]).batch(2),
    "within": lambda: rows().flat_map(lambda x, y: tf.data.Dataset.range(2).shuffle(2, seed=1)),
    "unknown class": lambda: type("_OtherDataset", (type(rows()),), {})(np.ones(3)),
}


@pytest.mark.parametrize("name", ALIKE)
def test_passes_that_are_alike(name):
    assert passes_are_alike(ALIKE[name]())


@pytest.mark.parametrize("name", OTHERS)
def test_passes_that_may_differ(name):
    assert not passes_are_alike(OTHERS[name]())


def test_a_global_seed_counts():
    keras.utils.set_random_seed(1)
    try:
        assert not passes_are_alike(rows().shuffle(8).batch(2))
    finally:
        tf.random.set_seed(None)


def test_source_of_a_data_set():
    replicas = Replicas(tf.distribute.get_strategy())
    alike, seeded = rows().batch(2), rows().shuffle(8, seed=1).batch(2)
    assert type(make_source(alike, replicas=replicas, num_epochs=2)) is IteratorSource
    others = [
        (alike, {}),
        (alike, {"num_epochs": 2, "steps": 3}),
        (alike.repeat(), {"num_epochs": 2}),
        (seeded, {"num_epochs": 2}),
    ]
    assert all(type(make_source(data, replicas=replicas, **options)) is DatasetSource for data, options in others)
