"""The actor through which workers on Ray and their driver talk, without Ray."""

import pytest

from tfaccel.extras.cluster.ray_worker import Board, News, WorkerEnd


def test_each_attempt_has_addresses_of_its_own():
    board = Board()
    assert board.num_workers() == []
    assert [board.begin(cluster) for cluster in ("a:1,b:1", "a:1,b:1", "a:2,b:2", "a:2,b:2")] == [1, 1, 2, 2]
    assert board.begin("a:3") == 3
    assert board.num_workers() == [2, 2, 1]


def test_output_is_passed_on_once_and_in_order():
    board = Board()
    board.exchange(0, 1, ["a", "b"])
    board.exchange(1, 1, ["c"])
    assert board.lines() == [(0, "a"), (0, "b"), (1, "c")]
    assert board.lines() == []


@pytest.mark.parametrize(
    ("status", "is_over"), [(0, False), (138, False), (-9, False), (1, True), (2, True), (-11, True)]
)
def test_a_failure_that_would_repeat_itself_ends_the_other_workers(status, is_over):
    board = Board()
    board.end(WorkerEnd(attempt=1, index=1, status=status))
    assert board.exchange(0, 1, []) == News(is_over=status in (1, 2, -11))
    assert board.exchange(0, 2, []) == News()


def test_workers_follow_the_chief_until_it_has_ended():
    board = Board()
    board.exchange(0, 1, [], num_reports=3)
    assert board.exchange(1, 1, [], num_reports=1) == News(num_reports=3)
    board.end(WorkerEnd(attempt=1, index=0, status=0))
    assert board.exchange(1, 1, [], num_reports=3) == News(num_reports=3, chief_has_ended=True)
    assert board.exchange(1, 2, []) == News()


def test_signals_reach_the_workers():
    board = Board()
    board.tell(15)
    assert board.exchange(0, 1, []) == News(signal=15)


def test_a_worker_that_speaks_is_not_silent():
    board = Board()
    before = board.silent_seconds()
    board.exchange(0, 1, [])
    assert 0 <= board.silent_seconds() < before + 5
