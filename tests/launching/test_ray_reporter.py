"""All workers report equally often, whoever ends first: Ray's `report` waits for all of them.

A barrier stands for `ray.train.report`, so that many orders of events can be tried.
"""

import random
import sys
import threading
import time
import types

import pytest

from tfaccel.extras.cluster import ray_worker
from tfaccel.extras.cluster.ray_worker import Board, RunReports, WorkerEnd

POLL_SECONDS = 0.002


class Group:
    """Workers as threads; one of them may fail for good, and the last may be a spare.

    Args:
        seed: determines their number, and when each ends.
        run_dir: of worker 0.
    """

    def __init__(self, seed, run_dir):
        self.random, self.run_dir = random.Random(seed), run_dir
        self.num_workers = self.random.choice([1, 2, 3, 4])
        self.has_spare = self.num_workers > 1 and self.random.random() < 0.3
        self.failing = self.random.choice([None, self.random.randrange(self.num_workers)])
        self.ends_after = [0.1 * self.random.random() for _ in range(self.num_workers)]
        self.barrier, self.local = threading.Barrier(self.num_workers), threading.local()
        self.reported = [[] for _ in range(self.num_workers)]
        self.board, self.lock = Board(), threading.Lock()
        self.errors = []

    def report(self, metrics, **options):
        self.barrier.wait(20)
        self.reported[self.local.index].append(metrics)

    def work(self, index):
        self.local.index = index
        try:
            self._work(index)
        except BaseException as error:
            self.errors.append(error)
            self.barrier.abort()

    def _work(self, index):
        def exchange(num_reports):
            with self.lock:
                return self.board.exchange(index, 1, [], num_reports)

        reporter = ray_worker._Reporter(exchange, RunReports(self.run_dir, self.run_dir) if index == 0 else None)
        if self.has_spare and index == self.num_workers - 1:
            reporter.follow_to_the_end()
            return
        until, step = time.monotonic() + self.ends_after[index], 0
        while time.monotonic() < until and not reporter.exchange().is_over:
            if index == 0:
                step += 1
                (self.run_dir / "checkpoints" / f"step_{step:010d}").mkdir(parents=True)
            time.sleep(POLL_SECONDS)
        reporter.exchange()
        reporter.close()
        status = 1 if index == self.failing else 0
        with self.lock:
            self.board.end(WorkerEnd(attempt=1, index=index, status=status))
        reporter.exchange()
        reporter.follow_to_the_end({"exit_status": status}, is_done=status == 0)


@pytest.mark.parametrize("seed", range(12))
def test_all_workers_report_equally_often(monkeypatch, tmp_path, seed):
    group = Group(seed, tmp_path / "run")
    group.run_dir.mkdir()
    modes = types.SimpleNamespace(SYNC=1, ASYNC=2)
    checkpoints = types.SimpleNamespace(from_directory=str)
    train = types.SimpleNamespace(report=group.report, CheckpointUploadMode=modes, Checkpoint=checkpoints)
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(train=train))
    monkeypatch.setitem(sys.modules, "ray.train", train)
    monkeypatch.setattr(ray_worker, "_POLL_SECONDS", POLL_SECONDS)
    threads = [threading.Thread(target=group.work, args=(index,)) for index in range(group.num_workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert group.errors == []
    assert len({len(reported) for reported in group.reported}) == 1
    statuses = [reported[-1].get("exit_status") for reported in group.reported]
    spare = group.num_workers - 1 if group.has_spare else None
    assert statuses == [None if index == spare else int(index == group.failing) for index in range(group.num_workers)]
