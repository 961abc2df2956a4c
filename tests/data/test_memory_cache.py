"""The cache in memory: every example is decoded once, wherever and however often it is read."""

import numpy as np
import pytest
import tensorflow as tf

from tfaccel.data.cache import MemoryCache
from tfaccel.data.epochs import ordered_map

pytestmark = pytest.mark.usefixtures("logical_devices")
NUM_EXAMPLES = 40
SPECS = {"image": tf.TensorSpec([2, 3], tf.uint8), "label": tf.TensorSpec([], tf.int64)}


class Source:
    """Examples that are made in Python, and a list of the rows that were asked for."""

    def __init__(self, bad_row=None):
        self.asked, self.bad_row = [], bad_row

    def __call__(self, rows):
        rows = tf.numpy_function(self._ask, [rows], tf.int64)
        rows.set_shape([None])
        return {"image": tf.cast(rows, tf.uint8)[:, None, None] * tf.ones([2, 3], tf.uint8), "label": 2 * rows}

    def _ask(self, rows):
        if self.bad_row in rows:
            raise ValueError("a bad example")
        self.asked.extend(rows.tolist())
        return rows


def cache_of(source):
    return MemoryCache(source, specs=SPECS, num_examples=NUM_EXAMPLES)


def labels(dataset):
    return [batch["label"].numpy().tolist() for batch in dataset]


def test_each_example_is_decoded_once_and_comes_out_as_it_went_in():
    source = Source()
    cache = cache_of(source)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(NUM_EXAMPLES)
        for batch in tf.data.Dataset.from_tensor_slices(order.reshape(5, 8)).map(cache.read):
            rows = batch["label"].numpy() // 2
            np.testing.assert_array_equal(batch["image"], np.broadcast_to(rows[:, None, None], (8, 2, 3)))
            order = order[8:] if np.array_equal(rows, order[:8]) else pytest.fail("the rows came in another order")
    assert sorted(source.asked) == list(range(NUM_EXAMPLES))


def test_only_what_is_missing_is_decoded():
    source = Source()
    cache = cache_of(source)
    cache.read(tf.constant([3, 9], tf.int64))
    found = cache.read(tf.constant([9, 5, 3, 9, 7], tf.int64))
    assert found["label"].numpy().tolist() == [18, 10, 6, 18, 14]
    assert source.asked == [3, 9, 5, 7]
    assert cache.num_kept == 4


def test_batches_keep_their_shape_for_xla():
    batches = tf.data.Dataset.range(NUM_EXAMPLES).batch(8, drop_remainder=True).map(cache_of(Source()).read)
    assert batches.element_spec["image"].shape == (8, 2, 3)


def test_calls_in_parallel_and_from_several_epochs_at_once():
    cache = cache_of(Source())
    batches = ordered_map(tf.data.Dataset.range(NUM_EXAMPLES).batch(4).repeat(3), cache.read)
    wanted = [[2 * row for row in range(start, start + 4)] for start in range(0, NUM_EXAMPLES, 4)] * 3
    for _ in range(5):
        both = tf.data.Dataset.zip(batches, batches)
        assert [one["label"].numpy().tolist() for one, other in both] == wanted
    assert cache.num_kept == NUM_EXAMPLES


def test_replicas_read_one_cache_that_was_made_in_their_scope():
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    source = Source()
    with strategy.scope():
        cache = cache_of(source)
    batches = tf.data.Dataset.range(NUM_EXAMPLES).batch(8).map(cache.read)
    for _ in range(2):
        parts = [
            strategy.experimental_local_results(batch["label"])
            for batch in strategy.experimental_distribute_dataset(batches)
        ]
        assert [part.numpy().tolist() for part in parts[0]] == [[0, 2, 4, 6], [8, 10, 12, 14]]
    assert sorted(source.asked) == list(range(NUM_EXAMPLES))


def test_a_dataset_keeps_its_cache():
    batches = tf.data.Dataset.range(4).batch(2).map(cache_of(Source()).read)
    assert labels(batches) == labels(batches) == [[0, 2], [4, 6]]


def test_what_cannot_be_decoded_is_not_kept():
    source = Source(bad_row=5)
    cache = cache_of(source)
    cache.read(tf.range(4, dtype=tf.int64))
    with pytest.raises(ValueError, match="a bad example"):
        cache.read(tf.range(2, 8, dtype=tf.int64))
    assert cache.num_kept == 4
    source.bad_row = None
    assert cache.read(tf.range(2, 8, dtype=tf.int64))["label"].numpy().tolist() == [4, 6, 8, 10, 12, 14]
