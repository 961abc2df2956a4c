"""The position of an iterator in a checkpoint, and what is known of pipelines that cannot be read a second time."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from tfaccel.data.feeds import IteratorFeed, ResumedPlace
from tfaccel.data.private_pipelines import buffered_bytes, known_to_vary, runs_python
from tfaccel.errors import DataError

pytestmark = pytest.mark.usefixtures("logical_devices")


@pytest.fixture(autouse=True)
def no_global_seed():
    """After `tf.random.set_seed`, a shuffled dataset has a seed."""
    tf.random.set_seed(None)


def numbers():
    return tf.data.Dataset.range(100)


def shuffled():
    return numbers().shuffle(30, seed=3).map(tf.strings.as_string, num_parallel_calls=2).batch(4).prefetch(2).repeat(2)


def rest(feed):
    found = []
    while not feed.exhausted:
        (iterator, following), _ = feed.arguments(1)
        found.append(following.get_value().numpy().tolist())
        feed.finished(1, (iterator.get_next_as_optional(),))
    return found


def after(num_batches, dataset):
    feed = IteratorFeed(dataset)
    for _ in range(num_batches):
        (iterator, _), _ = feed.arguments(1)
        feed.finished(1, (iterator.get_next_as_optional(),))
    return feed


@pytest.mark.parametrize("step", [0, 7, 25, 40, 50])
def test_saved_iterator_continues(step, caplog):
    feed = after(step, shuffled())
    state, checksum = feed.state(), feed.checksum_of_next()
    expected = rest(feed)
    assert len(expected) == 50 - step
    saved = ResumedPlace(step=step, batches=step, state=state, next_checksum=checksum)
    with caplog.at_level(logging.INFO, "tfaccel"):
        assert rest(saved.feed(shuffled())) == expected
    assert not caplog.records
    with caplog.at_level(logging.INFO, "tfaccel"):
        assert rest(ResumedPlace(step=step, batches=step, next_checksum=checksum).feed(shuffled())) == expected
    told = [f"Read {step} batches of the epoch again, in "] if step else []
    assert [record.message[: len(told[0])] for record in caplog.records] == told


def test_other_data_are_refused():
    feed = after(3, shuffled())
    place = ResumedPlace(step=3, batches=3, next_checksum=feed.checksum_of_next())
    other = numbers().shuffle(30, seed=4).map(tf.strings.as_string).batch(4).repeat(2)
    with pytest.raises(DataError, match=r"not those of the stopped run: the batch after step 3 of the epoch differs\."):
        place.feed(other)


def test_state_of_another_pipeline_is_not_used(caplog):
    state = after(3, shuffled()).state()
    assert rest(ResumedPlace(step=3, batches=3, state=state).feed(numbers().batch(4))) == rest(
        after(3, numbers().batch(4))
    )
    assert "The saved position in the dataset cannot be used" in caplog.text


def noise(number):
    return tf.cast(number, tf.float32) + tf.random.normal([])


def stateless(number):
    return tf.random.stateless_normal([], [number, 1])


def copied(number):
    return tf.numpy_function(np.copy, [number], tf.int64)


def in_branch(number):
    return tf.cond(number > 3, lambda: noise(number), lambda: 0.0)


SAME = {
    "seed": lambda: numbers().shuffle(8, seed=1).batch(2),
    "stateless": lambda: numbers().map(stateless),
    "inner seed": lambda: numbers().flat_map(lambda _: numbers().shuffle(3, seed=1)),
    "samples": lambda: tf.data.Dataset.sample_from_datasets([numbers(), numbers()], seed=1),
    "interleaved": lambda: numbers().interleave(lambda _: numbers(), num_parallel_calls=2, deterministic=True),
    "files": lambda: tf.data.TextLineDataset(["a"]).interleave(lambda _: numbers(), num_parallel_calls=2),
}
OTHER = {
    "no seed": (lambda: numbers().shuffle(8).batch(2), "is shuffled without a seed"),
    "random": (lambda: numbers().map(noise).batch(2), "draw random numbers (RandomStandardNormal)"),
    "branch": (lambda: numbers().map(in_branch), "draw random numbers"),
    "inner": (lambda: numbers().interleave(lambda _: numbers().shuffle(3)), "is shuffled without a seed"),
    "samples": (lambda: tf.data.Dataset.sample_from_datasets([numbers(), numbers()]), "without a seed"),
    "interleaved in any order": (
        lambda: numbers().interleave(lambda _: numbers(), num_parallel_calls=2, deterministic=False).batch(2),
        "depends on the time",
    ),
    "inner order": (
        lambda: numbers().flat_map(lambda _: numbers().map(stateless, num_parallel_calls=2, deterministic=False)),
        "depends on the time",
    ),
    "any order": (lambda: numbers().map(stateless, num_parallel_calls=2, deterministic=False), "depends on the time"),
}


@pytest.mark.parametrize("name", SAME)
def test_pipelines_that_yield_the_same_again(name):
    assert known_to_vary(SAME[name]()) == ""
    assert not runs_python(SAME[name]())


@pytest.mark.parametrize("name", OTHER)
def test_pipelines_that_are_known_to_vary(name):
    make, reason = OTHER[name]
    assert reason in known_to_vary(make())


def test_options_that_give_up_the_order():
    options = tf.data.Options()
    options.deterministic = False
    assert "depends on the time" in known_to_vary(numbers().with_options(options))


def test_python_code_is_found():
    generated = tf.data.Dataset.from_generator(lambda: iter([1.0]), output_signature=tf.TensorSpec([]))
    assert runs_python(generated.batch(2))
    assert runs_python(numbers().map(copied))
    assert IteratorFeed(numbers().map(copied)).state() is None


def test_bytes_of_buffers():
    assert buffered_bytes(numbers().shuffle(1000, seed=1)) == 8000
    assert buffered_bytes(tf.data.TFRecordDataset(["a"]).shuffle(1000)) > 10**8
    assert buffered_bytes(numbers().cache()) == 800
