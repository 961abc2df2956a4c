"""The pipeline builder: the same for seed and epoch anywhere, entered at any step, shared among workers."""

import threading

import numpy as np
import pytest

from tfaccel.data.cache import CacheOptions
from tfaccel.data.epochs import Part, shard_rows
from tfaccel.errors import DataError


class CountedReads:
    """A reader that notes which rows were read."""

    def __init__(self):
        self.rows = []
        self.lock = threading.Lock()

    def __call__(self, rows):
        import tensorflow as tf

        def read(numbers):
            with self.lock:
                self.rows += numbers.tolist()
            return (numbers * 10).astype(np.float32)

        return tf.ensure_shape(tf.numpy_function(read, [rows], tf.float32), [rows.shape[0]])


@pytest.fixture
def pipeline(logical_devices):
    """A function that makes a pipeline of 21 examples which are tens, with a random number below 1 added to each."""
    import tensorflow as tf

    from tfaccel.data.pipeline import Augmentation, Pipeline

    def make(read=lambda rows: tf.cast(rows * 10, tf.float32), **options):
        added = Augmentation(lambda generator, count: generator.random(count, np.float32), tf.add)
        return Pipeline(read, **{"num_examples": 21, "augmentation": added, "cache": None, **options})

    return make


def read(dataset):
    return np.stack(list(dataset.as_numpy_iterator()))


def test_an_epoch_is_full_batches_in_an_order_of_its_own(pipeline):
    batches = pipeline().train(4, seed=1, epoch=2)
    assert (batches.element_spec.shape, batches.cardinality()) == (4, 5)
    generator = np.random.default_rng([1, 2])
    order = generator.permutation(21)
    expected = (order * 10 + generator.random(21, np.float32)).astype(np.float32)
    assert np.array_equal(read(batches).ravel(), expected[:20])
    assert np.array_equal(read(pipeline().train(4, seed=1, epoch=2)), read(batches))
    for other in ((1, 3), (2, 2)):
        assert not np.array_equal(read(pipeline().train(4, seed=other[0], epoch=other[1])), read(batches))


def test_test_examples_come_in_order_and_are_not_augmented(pipeline):
    batches = [batch.tolist() for batch in pipeline(prepare=lambda tens: tens + 1).test(8).as_numpy_iterator()]
    assert [len(batch) for batch in batches] == [8, 8, 5]
    assert [number for batch in batches for number in batch] == [10 * number + 1 for number in range(21)]


def test_an_epoch_entered_at_a_step_reads_nothing_of_what_comes_before(pipeline):
    whole, counted = read(pipeline().train(4, seed=0, epoch=0)), CountedReads()
    rest = pipeline(counted).train(4, seed=0, epoch=0, start_step=3)
    assert rest.cardinality() == 2
    assert np.array_equal(read(rest), whole[3:])
    assert sorted(counted.rows) == sorted((whole[3:] // 10).astype(int).ravel())
    assert pipeline().train(4, seed=0, epoch=0, start_step=5).cardinality() == 0


@pytest.mark.parametrize("count", [2, 3])
def test_workers_read_their_own_rows_only(pipeline, count):
    whole = read(pipeline().train(5, seed=0, epoch=0))
    readers = [CountedReads() for _ in range(count)]
    parts = [
        read(pipeline(reader).train(5, seed=0, epoch=0, start_step=1, shard=(index, count)))
        for index, reader in enumerate(readers)
    ]
    assert np.array_equal(np.concatenate(parts, axis=1), whole[1:])
    assert sum(len(reader.rows) for reader in readers) == whole[1:].size
    for part, reader in zip(parts, readers, strict=True):
        assert sorted(reader.rows) == sorted((part // 10).astype(int).ravel())


def test_shares_are_those_that_replicas_take():
    from tfaccel.training.steps.replicas import split_rows

    for num_rows in range(1, 20):
        for count in range(1, num_rows + 1):
            for index in range(count):
                assert shard_rows(num_rows, (index, count)) == split_rows(num_rows, index, count)
    # A worker's replicas lie side by side, so that its share is that of all of them.
    assert shard_rows(7, (1, 2)) == (split_rows(7, 2, 4)[0], split_rows(7, 3, 4)[1])


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_cached_examples_are_read_once(pipeline, tmp_path, place):
    counted = CountedReads()
    cached = pipeline(counted, cache=CacheOptions(place=place, folder=tmp_path))
    for epoch in range(2):
        assert np.array_equal(
            read(cached.train(4, seed=0, epoch=epoch)), read(pipeline().train(4, seed=0, epoch=epoch))
        )
    measured = 8  # of them, to learn their size
    assert len(counted.rows) == 21 + measured
    assert set(counted.rows) == set(range(21))
    assert len(list(tmp_path.iterdir())) == (place == "disk")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"global_batch_size": 22}, r"A batch takes 22 pieces, but there are 21 to train on\. Use .* of at most 21\."),
        ({"start_step": 6}, r"An epoch has 5 full batches\. Received: start_step=6\."),
        ({"shard": (2, 2)}, r"an index from 0 below count.* Received: shard=\(2, 2\), global_batch_size=4\."),
        ({"shard": (4, 5)}, r"count at most the global batch size\. Received: shard=\(4, 5\)"),
    ],
)
def test_what_an_epoch_does_not_have_is_refused(options, text):
    with pytest.raises(DataError, match=text):
        Part(**{"global_batch_size": 4, "seed": 0, "epoch": 0, **options}).positions(21, "pieces")


def test_batches_can_be_augmented_later(pipeline):
    ours = pipeline()
    augmented = read(ours.train(4, seed=1, epoch=2))
    later = list(ours.train(4, seed=1, epoch=2, augmented=False).as_numpy_iterator())
    assert all((tens % 10 == 0).all() and (numbers < 1).all() for tens, numbers in later)
    assert np.array_equal(np.stack([ours.augment(batch) for batch in later]), augmented)
    share = next(ours.train(4, seed=1, epoch=2, augmented=False, start_step=3, shard=(1, 2)).as_numpy_iterator())
    assert np.array_equal(ours.augment(share), augmented[3, 2:])
    still = pipeline(augmentation=None)
    for batch, plain in zip(still.train(4, seed=1, epoch=2, augmented=False), later, strict=True):
        assert np.array_equal(still.augment(batch), plain[0])
