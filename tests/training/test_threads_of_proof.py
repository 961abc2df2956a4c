"""While a step is traced to compare it, other threads call Python, print and draw what they like."""

import io
import sys
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.random import seed_generator

from tfaccel.training.private.private_random import (
    noting_stateful_random,
    refusing_unseeded_random,
    same_generator_in_all_threads,
    still_random,
)
from tfaccel.training.proof.one_device import CallsPython, without_side_effects

pytestmark = pytest.mark.usefixtures("logical_devices")


def traced(function):
    return tf.function(function, autograph=False).get_concrete_function


def calls_python():
    return tf.numpy_function(lambda: np.float32(1), [], tf.float32)


def on_replicas(strategy, function, error):
    """Traces a function on each replica, which must raise an error there."""

    def refused():
        with pytest.raises(error):
            function()
        seen.append(True)

    seen = []
    traced(lambda: strategy.run(refused))()
    assert seen == [True, True]


@pytest.fixture
def other_thread():
    with ThreadPoolExecutor(1) as pool:
        yield lambda function: pool.submit(function).result()


@pytest.fixture
def strategy():
    return tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])


@pytest.fixture
def model():
    return keras.Sequential([keras.layers.Dense(1)])


def test_only_the_step_that_is_traced_may_not_call_python(model, strategy, other_thread):
    numbers = tf.data.Dataset.range(2)

    def nested():
        return tf.while_loop(lambda i: i < 2, lambda i: tf.cast(tf.function(calls_python)(), "int32"), [0])

    with without_side_effects(model):
        for step in (calls_python, nested, lambda: numbers.map(lambda _: calls_python())):
            with pytest.raises(CallsPython):
                traced(step)()
        on_replicas(strategy, calls_python, CallsPython)
        with pytest.raises(CallsPython):
            calls_python()
        assert other_thread(lambda: list(numbers.map(lambda _: calls_python()))) == [1, 1]
        assert other_thread(traced(calls_python)) is not None
        assert other_thread(calls_python) == 1


def test_only_the_step_that_is_traced_prints_nothing(model, other_thread, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    before = sys.stdout
    with without_side_effects(model):
        print("step")
        other_thread(lambda: print("data", flush=True))
        kept = sys.stdout
    kept.write("after\n")
    assert sys.stdout is before
    assert before.getvalue() == "data\nafter\n"


def draws():
    return tf.random.normal([]), tf.random.stateless_uniform([], [1, 2]), np.random.normal()


def test_only_the_step_that_is_traced_draws_constants(other_thread):
    used = []
    with still_random(used):
        drawn = other_thread(lambda: [traced(draws)()() for _ in range(2)])
        assert not used
        assert len({float(one) for pair in drawn for one in pair}) > 3
        assert [float(one) for one in traced(draws)()()] == [float(one) for one in traced(draws)()()]
    assert used


def test_only_the_step_that_is_traced_is_refused_or_noted(strategy, other_thread):
    noted = []

    def refuse():
        raise LookupError

    with noting_stateful_random(noted, lambda: 1):
        other_thread(traced(draws))
        assert not noted
        traced(lambda: strategy.run(draws))()
        assert len(noted) == 2
    with refusing_unseeded_random(refuse):
        other_thread(traced(draws))
        on_replicas(strategy, draws, LookupError)
        with pytest.raises(LookupError):
            traced(draws)()


def test_only_the_replicas_have_the_generator_of_their_thread(strategy, other_thread):
    keras.utils.set_random_seed(0)
    keras.random.normal([])
    found = []

    def note():
        found.append(seed_generator.global_seed_generator())

    with same_generator_in_all_threads():
        here = seed_generator.global_seed_generator()
        traced(lambda: strategy.run(note))()
        assert [one is here for one in found] == [True, True]
        other_thread(note)
        assert found[2] is not here
