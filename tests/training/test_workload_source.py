"""Training data of a workload: starting at a step without reading earlier batches, and sharding over workers."""

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tfaccel import Plan, Workload
from tfaccel.errors import WorkloadError
from tfaccel.processes.local_cluster import run_local_cluster

HERE = Path(__file__).parent
ALONE = SimpleNamespace(num_workers=1, num_replicas=1, worker_index=0)
SECOND_OF_TWO = SimpleNamespace(num_workers=2, num_replicas=2, worker_index=1)


@pytest.fixture
def source(logical_devices):
    """A function that creates the source of a workload with the given `train_data`, in batches of 4."""
    from tfaccel.training.run.workload_source import WorkloadSource

    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=4)

    def make(train_data, replicas=ALONE, **options):
        work = Workload("made_up", object, dict, train_data, global_batch_size=4)
        return WorkloadSource(work, plan, replicas, seed=0, **options)

    return make


def at(step):
    from tfaccel.data.feeds import ResumedPlace

    return ResumedPlace(step=step, batches=step)


def numbers(global_batch_size, *, seed, epoch):
    """Batches of the numbers from 0 to 18, in an order determined by seed and epoch."""
    import tensorflow as tf

    order = np.random.default_rng([seed, epoch]).permutation(19)
    return tf.data.Dataset.from_tensor_slices(order).batch(global_batch_size)


def get_epochs(source, count=2):
    """The batches of the next epochs."""
    found = []
    for _ in range(count):
        feed, batches = source.feed(), []
        while not feed.exhausted:
            (iterator, following), _ = feed.arguments(1)
            batches.append(following.get_value().numpy().tolist())
            feed.finished(1, (iterator.get_next_as_optional(),))
        found.append(batches)
    source.close()
    return found


def test_next_epoch_is_prepared_by_a_thread_with_the_same_dtype_policy(source):
    import keras

    calls = []

    def train_data(global_batch_size, *, seed, epoch):
        calls.append((epoch, threading.current_thread() is threading.main_thread(), keras.config.dtype_policy().name))
        return numbers(global_batch_size, seed=seed, epoch=epoch)

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        ahead = get_epochs(source(train_data, epochs=3), 3)
    finally:
        keras.config.set_dtype_policy(before)
    assert calls == [(0, True, "mixed_bfloat16"), (1, False, "mixed_bfloat16"), (2, False, "mixed_bfloat16")]
    assert ahead == get_epochs(source(numbers), 3)


def test_a_thread_releases_the_iterator_of_an_epoch(source, monkeypatch):
    """It may have to wait ten seconds for tf.data's autotuning."""
    from tfaccel.data import sources

    released = []
    start = threading.Thread.start
    monkeypatch.setattr(sources.threading.Thread, "start", lambda one: (released.append(one.name), start(one)))
    made = source(numbers, epochs=2)
    feeds = [made.feed(), made.feed()]
    made.close()
    assert released.count("tfaccel-iterator-release") == 2
    assert [feed.take_iterator() for feed in feeds] == [(None, None)] * 2


def test_error_in_the_thread_is_raised_where_the_epoch_begins(source):
    def train_data(global_batch_size, *, seed, epoch):
        if epoch == 1:
            raise WorkloadError("Nothing is left.")
        return numbers(global_batch_size, seed=seed, epoch=epoch)

    failing = source(train_data, epochs=2)
    failing.feed()
    with pytest.raises(WorkloadError, match=r"Nothing is left\."):
        failing.feed()
    failing.close()


def test_data_that_cannot_start_later_is_skipped_to(source):
    whole = get_epochs(source(numbers))
    resumed = source(numbers, start=at(3))
    assert resumed.num_batches == 5
    assert get_epochs(resumed) == [whole[0][3:], whole[1]]


def test_data_that_can_start_later_reads_nothing_of_what_comes_before(source):
    import tensorflow as tf

    from tfaccel.data.pipeline import Pipeline

    read = []

    def reader(rows):
        def noted(numbers):
            read.extend(numbers.tolist())
            return numbers

        return tf.ensure_shape(tf.numpy_function(noted, [rows], tf.int64), rows.shape)

    def train_data(global_batch_size, *, seed, epoch, start_step=0):
        pipeline = Pipeline(reader, num_examples=19, cache=None)
        return pipeline.train(global_batch_size, seed=seed, epoch=epoch, start_step=start_step)

    whole = get_epochs(source(train_data))
    read.clear()
    resumed = source(train_data, start=at(3), start_epoch=0)
    assert resumed.num_batches == 4
    assert get_epochs(resumed, count=1) == [whole[0][3:]]
    assert sorted(read) == sorted(number for batch in whole[0][3:] for number in batch)
    assert get_epochs(source(train_data, start=at(4))) == [[], whole[1]]  # it was stopped after the last step


def sharded(global_batch_size, *, seed, epoch, shard=None):
    """Like `numbers`; with a shard, the second half of each batch."""
    batches = numbers(global_batch_size, seed=seed, epoch=epoch)
    return batches if shard is None else batches.map(lambda batch: batch[2:])


def test_a_batch_without_a_known_number_of_rows_cannot_be_shared(source):
    with pytest.raises(
        WorkloadError, match=r"with shard=\(1, 2\) every batch of 4 must have 2 rows.* Received: an unk"
    ):
        source(sharded, SECOND_OF_TWO)


def test_a_worker_s_rows_are_those_of_its_replicas(source):
    def full(global_batch_size, *, seed, epoch, shard=None):
        import tensorflow as tf

        return (
            sharded(global_batch_size, seed=seed, epoch=epoch, shard=shard)
            .take(4)
            .map(lambda batch: tf.ensure_shape(batch, [4 if shard is None else 2]))
        )

    whole = get_epochs(source(full), count=1)[0]
    second = source(full, SECOND_OF_TWO)
    assert second.batch_spec.shape == (4,)
    feed = second.feed()
    (_, following), _ = feed.arguments(1)
    batch = following.get_value()
    assert feed.batches.num_rows(batch) == 4
    assert feed.batches.rows(batch, 2, 4).numpy().tolist() == whole[0][2:]
    assert feed.batches.rows(batch, 3, 4).numpy().tolist() == whole[0][3:]
    assert feed.fingerprint() is None  # other workers have other rows
    second.close()
    few = SimpleNamespace(num_workers=8, num_replicas=8, worker_index=0)
    assert source(sharded, few).feed().batches.num_global_rows is None  # some would have no row


@pytest.mark.slow
def test_two_workers_read_their_own_rows_and_train_as_on_whole_batches(tmp_path):
    command = [sys.executable, str(HERE / "shard_workload.py"), str(tmp_path)]
    workers = run_local_cluster(command, num_workers=2, time_limit_seconds=240)
    first, second = (json.loads(worker.stdout.splitlines()[-1]) for worker in workers)
    (whole, shared, refused), (whole_of_second, shared_of_second, _) = first, second
    assert (whole["num_read"], shared["num_read"], shared_of_second["num_read"]) == (80, 40, 40)
    for outcome in (whole_of_second, shared, shared_of_second):
        assert outcome["weights"] == whole["weights"]
        assert outcome["history"] == whole["history"]
    assert "This process has already trained with several workers" in refused
    assert "communication='ring'; the first had communication='tensorflow_default'. Start new workers." in refused


def joined(global_batch_size, *, seed, epoch, start_step=0, num_epochs=1):
    """Full batches of `numbers` for several consecutive epochs."""
    import tensorflow as tf

    orders = [np.random.default_rng([seed, epoch + i]).permutation(19)[:16] for i in range(num_epochs)]
    return tf.data.Dataset.from_tensor_slices(np.concatenate(orders).reshape(-1, global_batch_size)).skip(start_step)


def epochs_in_memory(source, count):
    """The batches of the next epochs, gathered from arrays."""
    found = []
    for _ in range(count):
        feed, batches = source.feed(), []
        while not feed.exhausted:
            (rows, order, first), num_steps = feed.arguments(3)
            batches += [rows.numpy()[numbers].tolist() for numbers in order.numpy()[int(first) :][:num_steps]]
            feed.finished(num_steps, None)
        found.append(batches)
    source.close()
    return found


@pytest.mark.parametrize("num_rows", [16, 19])
def test_batches_of_arrays_are_gathered_in_the_graph(source, num_rows):
    from tfaccel.data.given_data import GivenArrays

    arrays = GivenArrays(np.arange(num_rows))

    def read(global_batch_size, *, seed, epoch):  # the same without `in_memory`
        return arrays(global_batch_size, seed=seed, epoch=epoch).map(lambda *batch: batch[0])

    apart = get_epochs(source(read, epochs=5), 5)
    assert epochs_in_memory(source(arrays, epochs=5), 5) == apart
    resumed = source(arrays, epochs=5, start_epoch=2, start=at(3))
    assert epochs_in_memory(resumed, 3) == [apart[2][3:], *apart[3:]]
    second = source(arrays, SECOND_OF_TWO, epochs=1)
    assert type(second.feed()).__name__ == "IteratorFeed"
    second.close()


def test_small_epochs_are_prepared_together(source):
    calls = []

    def train_data(global_batch_size, *, seed, epoch, start_step=0, num_epochs=1):
        calls.append((epoch, start_step, num_epochs))
        return joined(global_batch_size, seed=seed, epoch=epoch, start_step=start_step, num_epochs=num_epochs)

    apart = get_epochs(source(lambda size, *, seed, epoch: joined(size, seed=seed, epoch=epoch)), 70)
    assert epochs_in_memory(source(train_data, epochs=70), 70) == apart
    assert calls == [(0, 0, 1), (0, 0, 64), (64, 0, 6)]
    resumed = source(train_data, epochs=4, start_epoch=1, start=at(3))
    assert epochs_in_memory(resumed, 3) == [apart[1][3:], *apart[2:4]]
    assert get_epochs(source(train_data, SECOND_OF_TWO, epochs=2)) == apart[:2]  # several workers read single epochs
