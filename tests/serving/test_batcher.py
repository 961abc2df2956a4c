"""Requests share batches up to the limits of size and wait; a full queue refuses; closing finishes what waits."""

import threading
import time

import numpy as np
import pytest

from tfaccel.extras.serving.messages import RequestError
from tfaccel.extras.serving.servable import Batcher, Work


class Model:
    """Doubles rows; keeps the sizes of its batches; waits for a gate if there is one."""

    def __init__(self):
        self.batches, self.gate = [], None

    def run(self, works):
        if self.gate is not None:
            self.gate.wait(10)
        self.batches.append([work.num_rows for work in works])
        if any(work.client == "poison" for work in works):
            raise ValueError("poisoned")
        return [work.arrays["x"] * 2 for work in works]

    def work(self, client, num_rows=1, key="same", **settings):
        return Work(self.run, key, {"x": np.full(num_rows, 1.0)}, num_rows, client, **settings)


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def make_batcher():
    """A function that makes a batcher whose results are kept; it is closed at the end."""
    made = []

    def make(**settings):
        results = {}
        arguments = {"max_batch_size": 4, "wait_seconds": 0.05, "max_queue": 8, **settings}
        batcher = Batcher(deliver=lambda pairs: results.update(pairs), **arguments)
        made.append(batcher)
        return batcher, results

    yield make
    for batcher in made:
        batcher.close()


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_requests_share_a_batch_up_to_its_size(model, make_batcher):
    batcher, results = make_batcher(wait_seconds=5.0)
    for client, num_rows in enumerate([1, 2, 1, 3, 2]):
        batcher.submit(model.work(client, num_rows))
    wait_for(lambda: len(model.batches) == 2)
    assert model.batches == [[1, 2, 1], [3]]  # Two more rows do not fit beside three.
    batcher.close()
    assert model.batches[2] == [2]
    assert sorted(results) == [0, 1, 2, 3, 4]
    assert results[3].tolist() == [2.0] * 3


def test_oldest_request_waits_only_so_long(model, make_batcher):
    batcher, results = make_batcher(wait_seconds=0.03)
    start = time.monotonic()
    batcher.submit(model.work("alone"))
    wait_for(lambda: results)
    assert time.monotonic() - start >= 0.03
    assert model.batches == [[1]]


def test_what_cannot_share_goes_alone_and_at_once(model, make_batcher):
    batcher, results = make_batcher(wait_seconds=30.0)
    for client in range(2):
        batcher.submit(model.work(client, key=None))
    wait_for(lambda: len(results) == 2)
    assert model.batches == [[1], [1]]


def test_requests_of_other_keys_do_not_share(model, make_batcher):
    batcher, results = make_batcher(wait_seconds=30.0)
    for number in range(8):
        batcher.submit(model.work(number, key=number % 2))
    wait_for(lambda: len(results) == 8)
    assert model.batches == [[1] * 4, [1] * 4]


def test_larger_request_than_a_batch_is_one_of_its_own(model, make_batcher):
    batcher, results = make_batcher(wait_seconds=30.0)
    batcher.submit(model.work("large", 9))
    wait_for(lambda: results)
    assert model.batches == [[9]]


def test_full_queue_refuses_and_says_when_to_come_again(model, make_batcher):
    batcher, results = make_batcher(max_batch_size=1, max_queue=2)
    model.gate = threading.Event()
    batcher.submit(model.work("running"))
    wait_for(lambda: batcher.num_waiting == 0)
    batcher.submit(model.work("first"))
    batcher.submit(model.work("second"))
    with pytest.raises(RequestError, match="2 requests are waiting already") as caught:
        batcher.submit(model.work("third"))
    assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "1"})
    model.gate.set()
    wait_for(lambda: len(results) == 3)
    batcher.submit(model.work("third"))


def test_error_goes_to_the_clients_of_the_batch_and_the_thread_goes_on(model, make_batcher):
    batcher, results = make_batcher(max_batch_size=2, wait_seconds=30.0)
    for client in ("poison", "beside", "later", "last"):
        batcher.submit(model.work(client))
    wait_for(lambda: len(results) == 4)
    assert str(results["poison"]) == str(results["beside"]) == "poisoned"
    assert results["last"].tolist() == [2.0]


def test_closing_finishes_what_waits(model, make_batcher):
    batcher, results = make_batcher(wait_seconds=60.0)
    batcher.submit(model.work("waiting"))
    batcher.close()
    assert results["waiting"].tolist() == [2.0]
    with pytest.raises(RequestError, match="The server is stopping") as caught:
        batcher.submit(model.work("late"))
    assert caught.value.status == 503


def gated_model():
    """A model whose runs wait for a gate, and a way to wait until so many have begun."""
    model = Model()
    model.gate, begun = threading.Event(), []
    run = model.run

    def noted(works):
        begun.append([work.client for work in works])
        return run(works)

    model.run = noted
    return model, begun


def test_full_batch_runs_beside_another_and_others_wait_for_it(make_batcher):
    model, begun = gated_model()
    batcher, results = make_batcher(wait_seconds=0.0)
    for client in ("first", "second", "third"):
        batcher.submit(model.work(client, 4, is_exclusive=False))
    batcher.submit(model.work("small", 1, is_exclusive=False))
    wait_for(lambda: len(begun) == 2)
    time.sleep(0.05)
    assert (begun, batcher.num_waiting) == ([["first"], ["second"]], 2)
    model.gate.set()
    wait_for(lambda: len(results) == 4)
    assert sorted(begun[2:]) == [["small"], ["third"]]


def test_nothing_runs_beside_an_exclusive_batch(make_batcher):
    model, begun = gated_model()
    batcher, results = make_batcher(wait_seconds=0.0)
    batcher.submit(model.work("shared", 4, is_exclusive=False))
    wait_for(lambda: len(begun) == 1)
    batcher.submit(model.work("exclusive", 4))
    batcher.submit(model.work("later", 4, is_exclusive=False))
    time.sleep(0.05)
    assert begun == [["shared"]]
    model.gate.set()
    wait_for(lambda: len(results) == 3)
    assert begun == [["shared"], ["exclusive"], ["later"]]


def test_few_rows_do_not_wait_behind_full_batches_that_come_later(make_batcher):
    model, begun = gated_model()
    batcher, results = make_batcher(wait_seconds=0.01)
    batcher.submit(model.work("running", 4, is_exclusive=False))
    wait_for(lambda: len(begun) == 1)
    batcher.submit(model.work("small", 1, key="other", is_exclusive=False))
    time.sleep(0.05)
    for client in ("full", "fuller"):
        batcher.submit(model.work(client, 4, is_exclusive=False))
    model.gate.set()
    wait_for(lambda: len(results) == 4)
    assert begun.index(["small"]) < begun.index(["fuller"])
    assert begun[1] == ["small"]
