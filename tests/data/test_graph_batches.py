"""Replicas' rows of a global batch: none is lost, none is taken twice."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tfaccel.data.feeds import (
    ArrayBatches,
    IteratorBatches,
    augmented_by_replicas,
    without_optionals,
)
from tfaccel.training.steps.replicas import split_rows

pytestmark = pytest.mark.usefixtures("logical_devices")


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 8])
def test_shares_cover_all_rows_and_differ_by_one_at_most(num_replicas):
    for num_rows in range(1, 30):
        shares = [split_rows(num_rows, replica, num_replicas) for replica in range(num_replicas)]
        assert shares[0][0] == 0
        assert shares[-1][1] == num_rows
        assert all(left[1] == right[0] for left, right in itertools.pairwise(shares))
        sizes = [stop - start for start, stop in shares]
        assert max(sizes) - min(sizes) <= 1
        assert sizes[0] >= 1


def test_rows_of_arrays_by_number():
    batches = ArrayBatches(has_partial_batch=False)
    batch, state = batches.fetch((tf.range(10) * 10, tf.constant([[4, 2, 9], [1, 0, 3]], tf.int64), 1), (), 0)
    assert state == ()
    assert batches.num_rows(batch) == 3
    assert batches.rows(batch).numpy().tolist() == [10, 0, 30]
    assert batches.rows(batch, 1, 3).numpy().tolist() == [0, 30]
    assert batches.rows(batch, 3, 3).numpy().tolist() == []


def test_batches_of_a_data_set_with_a_partial_one_have_unknown_rows():
    shapes = {}

    @tf.function
    def trace(numbers):
        for partial in (False, True):
            batches = ArrayBatches(has_partial_batch=partial)
            batch, _ = batches.fetch((tf.ones((10, 2)), numbers, tf.constant(0, tf.int64)), (), tf.constant(0))
            shapes[partial] = batches.rows(batch).shape.as_list()

    trace(tf.constant([[4, 2, 9]], tf.int64))
    assert shapes == {False: [3, 2], True: [None, 2]}


def test_rows_of_dense_ragged_sparse_and_missing_values():
    batches = IteratorBatches()
    dense = np.arange(12, dtype="float32").reshape(4, 3) % 5
    batch = {
        "ragged": tf.ragged.constant([[1], [], [2, 3], [4]]),
        "sparse": tf.sparse.from_dense(dense),
        "missing": None,
        "scalar": tf.constant(7),
        "text": tf.constant(["a", "b", "c", "d"]),
    }
    assert int(batches.num_rows(batch)) == 4
    part = batches.rows(batch, 1, 3)
    assert part["ragged"].to_list() == [[], [2, 3]]
    assert np.array_equal(tf.sparse.to_dense(part["sparse"]), dense[1:3])
    assert part["missing"] is None
    assert int(part["scalar"]) == 7
    assert part["text"].numpy().tolist() == [b"b", b"c"]
    assert batches.rows(batch) is batch
    empty = batches.rows(batch, 4, 4)
    assert empty["sparse"].shape.as_list()[0] in (0, None)
    assert empty["ragged"].to_list() == []


def test_number_of_rows_is_known_while_tracing_where_it_can_be():
    batches, known = IteratorBatches(), []

    @tf.function(input_signature=[tf.TensorSpec([4, 2]), tf.TensorSpec([None, 2])])
    def trace(fixed, free):
        known.extend([batches.num_rows((None, fixed)), batches.num_rows(free)])

    trace(tf.ones((4, 2)), tf.ones((3, 2)))
    assert known[0] == 4
    assert isinstance(known[1], tf.Tensor)


def test_equal_batches_share_a_graph():
    assert IteratorBatches() == IteratorBatches()
    assert hash(ArrayBatches(has_partial_batch=True)) == hash(ArrayBatches(has_partial_batch=True))
    assert ArrayBatches(has_partial_batch=True) != ArrayBatches(has_partial_batch=False)


def test_optionals_become_none():
    spec = (tf.TensorSpec([2]), tf.OptionalSpec(tf.TensorSpec([])))
    assert without_optionals(spec) == (tf.TensorSpec([2]), None)


def added_and_counted(batch):
    """Examples plus the numbers drawn for them, and how many rows were seen."""
    examples, numbers = batch
    return examples + numbers, tf.fill([len(examples)], len(examples))


def test_rows_are_augmented_when_they_are_asked_for():
    batch = tf.range(6) * 10, tf.range(6)
    by_row = IteratorBatches(augment=added_and_counted)
    assert by_row.num_rows(batch) == 6
    assert [part.numpy().tolist() for part in by_row.rows(batch, 2, 4)] == [[22, 33], [2, 2]]
    assert [part.numpy().tolist() for part in by_row.rows(batch)] == [[0, 11, 22, 33, 44, 55], [6] * 6]
    whole = IteratorBatches(augment=added_and_counted, mixes_rows=True)
    assert [part.numpy().tolist() for part in whole.rows(batch, 2, 4)] == [[22, 33], [6, 6]]
    own = IteratorBatches(num_global_rows=8, first_row=2, augment=added_and_counted)
    assert [part.numpy().tolist() for part in own.rows(batch, 4, 6)] == [[22, 33], [2, 2]]


def test_rows_divided_on_the_host_are_augmented_by_the_replicas():
    own = IteratorBatches(num_global_rows=8, first_row=2, augment=added_and_counted)
    assert augmented_by_replicas(own) == (IteratorBatches(8, 2), added_and_counted)
    for batches in (IteratorBatches(augment=added_and_counted, mixes_rows=True), IteratorBatches()):
        same, augment = augmented_by_replicas(batches)
        assert (same, augment(3)) == (batches, 3)
