"""Steps that run ahead in a thread of their own."""

import os
import threading

import pytest
import tensorflow as tf

from tfaccel.training.proof.detached_step import DetachedStep, State, StepAhead


@pytest.fixture
def adds(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    total = tf.Variable(1.0)
    step = tf.function(lambda amount: total.assign_add(amount)).get_concrete_function(tf.TensorSpec([]))
    return total, DetachedStep(step)


def test_a_quick_step_runs_on_other_rows_while_nobody_waits(adds):
    total, step = adds
    ahead = StepAhead(step, tf.constant(2.0), State([total]), other=tf.constant(5.0))
    ahead._second.result()
    result, after = ahead.of_other()
    assert (float(result), float(after[total]), float(ahead.result()[0]), float(total)) == (6.0, 6.0, 3.0, 1.0)


class Blocked(DetachedStep):
    """Begins when it is told to."""

    begins = None

    def run(self, data, before, given):
        self.begins.wait(30)
        return super().run(data, before, given)


def test_a_step_that_is_waited_for_does_not_run_on_other_rows(adds):
    total, step = adds
    blocked = Blocked(step._function)
    blocked.begins = threading.Event()
    ahead = StepAhead(blocked, tf.constant(2.0), State([total]), other=tf.constant(5.0))
    waits = threading.Thread(target=ahead.wait)
    waits.start()
    while not ahead._is_awaited:
        pass
    blocked.begins.set()
    waits.join()
    assert ahead.of_other() is None and float(ahead.result()[0]) == 3.0


def test_a_step_that_fails_on_other_rows_leaves_the_first_result(adds):
    total, step = adds
    ahead = StepAhead(step, tf.constant(2.0), State([total]), other=tf.constant([1.0, 2.0]))
    ahead._second.exception()
    assert ahead.of_other() is None and float(ahead.result()[0]) == 3.0


def test_on_two_cores_a_step_runs_on_other_rows_only_if_it_must(adds, monkeypatch):
    total, step = adds
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    ahead = StepAhead(step, tf.constant(2.0), State([total]), other=tf.constant(5.0))
    assert ahead.of_other() is None and float(ahead.result()[0]) == 3.0
