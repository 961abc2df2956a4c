"""Training data on the replica that needs them: sharded before augmentation, and prefetched to the device."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tfaccel import Plan, Workload
from tfaccel.errors import PlanError

pytestmark = pytest.mark.usefixtures("logical_devices")

PLAN = Plan(strategy="none", devices=("CPU:0",), global_batch_size=4, augment_on="device")
ALONE = SimpleNamespace(num_workers=1, num_replicas=1, worker_index=0)
SECOND_OF_TWO = SimpleNamespace(num_workers=2, num_replicas=2, worker_index=1)


def train_data(global_batch_size, *, seed, epoch, start_step=0, shard=None, augmented=True):
    """Batches of the numbers from 0 to 10; the augmentation adds 0.5 to each."""
    import tensorflow as tf

    from tfaccel.data.epochs import Part

    places = (
        Part(global_batch_size=global_batch_size, seed=seed, epoch=epoch, start_step=start_step, shard=shard)
        .positions(11)
        .astype(np.float32)
    )
    batches = tf.data.Dataset.from_tensor_slices((places, np.full_like(places, 0.5)))
    return batches.map(lambda *batch: added(batch)) if augmented else batches


def added(batch):
    return batch[0] + batch[1]


def get_rows(replicas, *, mixes_rows=False, **options):
    """Rows 2 and 3 of each global batch as the replica receives them, the batch spec, and the number of global rows."""
    from tfaccel.training.run.workload_source import WorkloadSource

    work = Workload(
        "made_up", object, dict, train_data, global_batch_size=4, augment=added, augment_mixes_rows=mixes_rows
    )
    source = WorkloadSource(work, PLAN, replicas, seed=0, **options)
    feed, found = source.feed(), []
    while not feed.exhausted:
        (iterator, following), _ = feed.arguments(1)
        found.append(feed.batches.rows(following.get_value(), 2, 4).numpy().tolist())
        feed.finished(1, (iterator.get_next_as_optional(),))
    source.close()
    return found, source.batch_spec.shape, feed.batches.num_global_rows


def test_a_worker_reads_and_augments_its_own_rows():
    from tfaccel.data.feeds import ResumedPlace

    expected = [[2.5, 3.5], [6.5, 7.5]]
    assert get_rows(ALONE) == (expected, (4,), None)
    assert get_rows(SECOND_OF_TWO) == (expected, (4,), 4)
    assert get_rows(SECOND_OF_TWO, mixes_rows=True) == (expected, (4,), None)  # it reads them all
    assert get_rows(SECOND_OF_TWO, start=ResumedPlace(step=1, batches=1)) == (expected[1:], (4,), 4)


def test_batches_are_fetched_to_a_device():
    import tensorflow as tf

    from tfaccel.data.feeds import IteratorFeed
    from tfaccel.training.run.workload_source import fetched_to

    batches = tf.data.Dataset.range(10).map(lambda n: {"a": n, "b": (tf.cast(n, tf.float32), n * 2)}).batch(4)
    feed, seen = IteratorFeed(fetched_to("/CPU:1", batches.prefetch(2))), []

    @tf.function
    def summed(arguments):
        def body(total, following):
            batch = feed.batches.rows(following.get_value())
            return total + tf.reduce_sum(batch["a"] + batch["b"][1]), arguments[0].get_next_as_optional()

        return tf.while_loop(lambda _, following: following.has_value(), body, (tf.constant(0, tf.int64), arguments[1]))

    arguments, _ = feed.arguments(3)
    seen.append(arguments[1].get_value()["a"].numpy().tolist())
    total, state = summed(arguments)
    feed.finished(3, (state,))
    assert (seen, int(total), feed.exhausted) == ([[0, 1, 2, 3]], 3 * 45, True)
    feed.take_iterator()


def test_what_a_gpu_cannot_hold_is_not_fetched_there():
    import tensorflow as tf

    from tfaccel.training.run.workload_source import fetched_to

    texts = tf.data.Dataset.from_tensors(tf.constant(["text"]))
    ragged = tf.data.Dataset.from_tensors(tf.ragged.constant([[1], [2, 3]]))
    for dataset in (texts, ragged):
        with pytest.raises(PlanError, match=r"batches hold .*Spec\(.*GPU memory\. Set prefetch_to_device=False\."):
            fetched_to("/CPU:1", dataset)
    assert replace(PLAN, devices=("GPU:0",), prefetch_to_device=True).prefetch_to_device
