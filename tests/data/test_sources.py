"""Sources hand out every row once a pass, in an order that follows from the seed."""

import itertools
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfaccel.data.epochs import order_of_keras, random_order
from tfaccel.data.sources import ArraySource, DatasetSource, IteratorSource, repeated

pytestmark = pytest.mark.usefixtures("logical_devices")


def as_list(value):
    return None if value is None else value.numpy().tolist()


def joined(batches):
    return list(itertools.chain.from_iterable(batches))


def get_batches(source, *, window=2, limit=None):
    """The batches of one epoch, as a graph call would take them; and how long each call was."""
    feed, found, calls = source.feed(), [], []
    while not feed.exhausted and (limit is None or len(found) < limit):
        wanted = window if limit is None else min(window, limit - len(found))
        arguments, count = feed.arguments(wanted)
        state = feed.batches.start(arguments)
        done = 0
        while done < count and bool(feed.batches.has_next(state)):
            batch, state = feed.batches.fetch(arguments, state, tf.constant(done))
            found.append(keras.tree.map_structure(as_list, feed.batches.rows(batch)))
            done += 1
        feed.finished(done, state)
        calls.append(done)
    return found, calls


def arrays(rows=10, **options):
    return ArraySource(tf.range(rows), **{"global_batch_size": 4, **options})


def test_arrays_in_order():
    assert get_batches(arrays()) == ([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], [2, 1])
    assert arrays().num_batches == 3
    assert get_batches(arrays(8))[1] == [2]


def test_partial_batch_is_a_call_of_its_own():
    assert get_batches(arrays(), window=9)[1] == [2, 1]


def test_shuffled_passes_differ_and_follow_from_the_seed():
    orders = (random_order(40, 4, shuffle=True, seed=seed) for seed in (7, 7, 8))
    source, same, other = (arrays(40, order=order) for order in orders)
    first, second = get_batches(source)[0], get_batches(source)[0]
    assert sorted(joined(first)) == sorted(joined(second)) == list(range(40))
    assert first != second
    assert [get_batches(same)[0], get_batches(same)[0]] == [first, second]
    assert get_batches(other)[0] != first


def test_shuffle_inside_batches():
    for make in (random_order, order_of_keras):
        order = make(42, 8, shuffle="batch", seed=3)
        found = get_batches(arrays(42, order=order, global_batch_size=8))[0]
        assert [sorted(batch) for batch in found] == [list(range(42))[start : start + 8] for start in range(0, 42, 8)]
        assert joined(found) != list(range(42))


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1, 2**32 - 1])
def test_order_of_keras(seed):
    tf.random.set_seed(seed)
    try:
        shuffled = tf.data.Dataset.range(1).map(lambda _: tf.random.shuffle(tf.range(9, dtype=tf.int64)))
        expected = shuffled.get_single_element().numpy().tolist()
    finally:
        tf.random.set_seed(None)
    order = order_of_keras(9, 4, shuffle=True, seed=seed)
    assert order(0).tolist() == order(1).tolist() == expected


def test_epochs_shorter_than_a_pass_go_on():
    source = arrays(steps=2)
    epochs = [get_batches(source, limit=2)[0] for _ in range(3)]
    assert epochs == [[[0, 1, 2, 3], [4, 5, 6, 7]], [[8, 9]], [[0, 1, 2, 3], [4, 5, 6, 7]]]
    source.reset()
    assert get_batches(source, limit=1)[0] == [[0, 1, 2, 3]]


def test_nested_arrays_keep_their_structure():
    source = ArraySource(({"a": tf.range(3), "b": tf.ones((3, 2))}, None), global_batch_size=2)
    (first, second), _ = get_batches(source)
    assert first == ({"a": [0, 1], "b": [[1.0, 1.0], [1.0, 1.0]]}, None)
    assert second[0]["a"] == [2]
    assert source.batch_spec[0]["b"] == tf.TensorSpec([None, 2], tf.float32)


def dataset(rows=6, **options):
    return IteratorSource(tf.data.Dataset.range(rows).batch(2), **{"num_batches": 3, **options})


def test_datasets_give_a_pass_an_epoch():
    for source in (dataset(), dataset(num_epochs=3), dataset(num_batches=None)):
        assert [get_batches(source) for _ in range(3)] == [([[0, 1], [2, 3], [4, 5]], [2, 1])] * 3
        source.close()


def test_repeated_dataset_uses_one_iterator():
    source = dataset(num_epochs=2)
    assert source.feed() is source.feed()
    source.close()


def test_one_thread_fetches_ahead_of_a_repeat():
    plain = tf.data.Dataset.range(6).batch(2)
    for pipeline, option in ((plain, None), (plain.prefetch(1), False)):
        twice = repeated(pipeline, 2)
        assert twice.options().experimental_optimization.inject_prefetch is option
        assert [batch.tolist() for batch in twice.as_numpy_iterator()] == [[0, 1], [2, 3], [4, 5]] * 2


def test_number_of_batches_is_learned():
    source = dataset(num_batches=None)
    get_batches(source)
    source.epoch_end(3)
    assert source.num_batches == 3
    source.close()


class Adapter:
    """A data adapter as Keras has them, of a data set that counts its iterators."""

    def __init__(self, rows=6, num_batches=3):
        self.num_batches = num_batches
        self.calls = []
        self._dataset = tf.data.Dataset.range(rows).shuffle(rows, seed=1).batch(2)

    def get_tf_dataset(self):
        return self._dataset

    def on_epoch_begin(self):
        self.calls.append("begin")

    def on_epoch_end(self):
        self.calls.append("end")


def get_epochs(adapter, number, **options):
    """The batches of some epochs of a source that goes on as `Model.fit` does."""
    source = DatasetSource(adapter, **options)
    source.reset()
    epochs = []
    for _ in range(number):
        epochs.append(get_batches(source, window=99)[0])
        source.epoch_end(len(epochs[-1]))
    source.close()
    return epochs


def passes_of(number, rows=6):
    """What the first iterators of such a data set give, in their order."""
    dataset = Adapter(rows).get_tf_dataset()
    return [[batch.tolist() for batch in dataset.as_numpy_iterator()] for _ in range(number)]


def test_an_iterator_is_made_before_and_behind_each_epoch():
    passes = passes_of(5)
    adapter = Adapter()
    assert get_epochs(adapter, 3) == passes[::2]
    assert adapter.calls == ["end", "begin", "end", "begin", "end", "begin", "end"]


def test_iterator_goes_on_across_epochs_of_fixed_length():
    first, second, *_ = passes_of(2)
    assert get_epochs(Adapter(), 4, steps_per_epoch=2) == [first[:2], first[2:], second[:2], second[2:]]


def test_epochs_have_whole_executions():
    first, second, third, *_ = passes_of(3)
    epochs = get_epochs(Adapter(), 3, steps_per_epoch=1, steps_per_execution=2)
    assert epochs == [first[:2], first[2:], second[:2]]
    assert get_epochs(Adapter(), 2, steps_per_execution=2) == [first, third]


def test_unknown_lengths_are_learned_with_the_execution_that_found_no_batch():
    adapter = Adapter(num_batches=None)
    first, second = passes_of(2)
    source = DatasetSource(adapter)
    source.reset()
    assert get_batches(source)[0] == first
    source.epoch_end(3)
    assert source.num_batches == 4
    assert get_batches(source)[0] == second
    source.close()


def test_a_stopped_epoch_does_not_end():
    adapter = Adapter()
    source = DatasetSource(adapter)
    source.feed()
    source.epoch_end(1, stopped=True)
    assert adapter.calls == ["begin"]
    source.close()


def test_close_leaves_no_thread():
    source = dataset()
    source.feed()
    source.close()
    source.close()
    for thread in threading.enumerate():
        if thread.name == "tfaccel-iterator-release":
            thread.join(10)
            assert not thread.is_alive()


def test_batch_spec_has_none_for_optionals():
    empty = tf.data.Dataset.from_tensors((np.ones(2), tf.experimental.Optional.empty(tf.TensorSpec([]))))
    source = IteratorSource(empty, num_batches=1)
    assert source.batch_spec[1] is None
    assert get_batches(source)[0] == [([1.0, 1.0], None)]
    source.close()


def test_checksum_of_arrays_is_taken_once_and_sees_every_row():
    rows = tf.range(1000)
    other = tf.concat([rows[:-1], [0]], 0)
    found = [source.feed().fingerprint() for source in (ArraySource(one, global_batch_size=8) for one in (rows, other))]
    assert found[0] != found[1]
    assert all(0 <= one < 2**31 for one in found)
    source = ArraySource(rows, global_batch_size=8)
    assert [source.feed().fingerprint(), source.feed().fingerprint()] == [found[0], None]
