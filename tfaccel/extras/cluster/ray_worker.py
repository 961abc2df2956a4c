"""What each worker of a run on Ray does: it runs the command in a process of its own, and reports how that ended."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfaccel.extras.cluster.ray_board import News, WorkerEnd
from tfaccel.extras.cluster.ray_reports import RunReport, RunReports, put_back
from tfaccel.launching.launched_worker import LaunchedWorker
from tfaccel.launching.worker_places import WorkerPlace
from tfaccel.processes.exit_status import DONE
from tfaccel.processes.launched import ATTEMPT, NUM_WORKERS, STARTED

logger = logging.getLogger("tfaccel")

_POLL_SECONDS = 0.2
_EXCHANGE_SECONDS = 1.0  # each exchange with the board takes some milliseconds of the workers' cores
_ANSWER_SECONDS = 30.0
_OTHERS_SECONDS = 5.0  # for the cause of a failure, if it is another worker's, to become known
# Ray sets these for its own processes; with the first, TensorFlow would load Keras 2.
_NOT_PASSED_ON = {"TF_USE_LEGACY_KERAS": None, "PYTHONBREAKPOINT": None}


class WorkerLostError(RuntimeError):
    """A worker's command ended so that starting again may help: Ray restarts all workers, if it may."""


def run_worker(config: dict[str, Any]) -> None:
    """The training function of Ray's workers.

    Args:
        config: "board", the actor; "command"; "environment"; "started", when the run was launched; "directory", of the
            driver; "log_dir"; "cores", a list for each worker, empty for all cores; "grace_seconds";
            "silence_seconds"; "num_workers", of the whole group; "run_dir", whose metrics and checkpoints are reported,
            or None.

    Raises:
        WorkerLostError: if starting again may help.
    """
    import ray

    board = config["board"]
    place = json.loads(os.environ["TF_CONFIG"])
    index, addresses = place["task"]["index"], place["cluster"]["worker"]
    attempt = ray.get(board.begin.remote(",".join(addresses)), timeout=_ANSWER_SECONDS)
    with contextlib.suppress(OSError):  # the driver's directory, if this node has it
        os.chdir(config["directory"])
    folder = Path(config["log_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    log = _NewLines(folder / f"worker-{index}.log")
    reports, told = None, list[str]()
    if index == 0 and config["run_dir"]:
        run_dir = Path(config["run_dir"])
        if attempt > 1 and _put_back(run_dir):
            told.append(f"{run_dir} was restored from the newest checkpoint that Ray keeps.")
        reports = RunReports(run_dir, folder)

    def exchange(num_reports: int = 0) -> News:
        lines = [*told, *log.read()]
        told.clear()
        news = board.exchange.remote(index, attempt, lines, num_reports)
        found: News = ray.get(news, timeout=_ANSWER_SECONDS)
        return found

    reporter = _Reporter(exchange, reports)
    active = num_active_workers(len(addresses), config["num_workers"])
    if index >= active:  # the batch cannot be divided among so many: this one waits, as a spare
        reporter.follow_to_the_end()
        return
    worker = _started(config, index, addresses[:active], attempt)
    try:
        end = _get_end(worker, attempt, reporter, config)
        reporter.close()
        ray.get(board.end.remote(end), timeout=_ANSWER_SECONDS)
        if end.status != DONE and not end.is_final and not _is_settled(reporter.exchange):
            raise WorkerLostError(end.cause)
        reporter.exchange()
    finally:
        worker.end()
    reporter.follow_to_the_end({"exit_status": end.status}, is_done=end.status == DONE)


def num_active_workers(num_started: int, num_workers: int) -> int:
    """How many of the workers that Ray has started train: so many that the whole group's batches can be divided.

    Args:
        num_started: the workers that Ray has found a place for.
        num_workers: of the whole group, which the global batch is a multiple of.

    Example:
        >>> [num_active_workers(number, 4) for number in (1, 2, 3, 4)]
        [1, 2, 2, 4]
    """
    return max(number for number in range(1, num_started + 1) if num_workers % number == 0)


def _started(config: dict[str, Any], index: int, addresses: list[str], attempt: int) -> LaunchedWorker:
    """The command, in a process of its own."""
    task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    environment = {
        **_NOT_PASSED_ON,
        **config["environment"],
        ATTEMPT: str(attempt),
        STARTED: config["started"],
        NUM_WORKERS: str(config["num_workers"]),
        "TF_CONFIG": json.dumps(task) if len(addresses) > 1 else "",
    }
    cores = tuple(config["cores"][index]) if config["cores"] else ()
    place, folder = WorkerPlace(index, cores), Path(config["log_dir"])
    return LaunchedWorker(config["command"], place, environment=environment, folder=folder)


def _put_back(run_dir: Path) -> bool:
    """Restores the newest reported checkpoint, if this node does not have the run directory; whether it did."""
    import ray.train

    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return False
    with checkpoint.as_directory() as folder:
        return put_back(Path(folder), run_dir)


class _Reporter:
    """Reports to Ray. All workers must do so equally often: worker 0 decides, and the others follow.

    Args:
        exchange: tells the board how often this worker has reported, and returns the news.
        reports: of the run directory, on worker 0.
    """

    def __init__(self, exchange: Callable[[int], News], reports: RunReports | None) -> None:
        self._exchange = exchange
        self._reports = reports
        self._is_open = True
        self._count = 0

    def exchange(self) -> News:
        """Reports what is new; returns the news."""
        report = self._reports.news() if self._reports is not None and self._is_open else None
        news = self._exchange(self._count + (report is not None))
        if report is not None:
            self._report(report.metrics, report.folder)
        while self._count < news.num_reports:
            self._report({})
        return news

    def close(self) -> None:
        """Decides nothing more: the others are about to learn that worker 0 has ended."""
        self._is_open = False

    def follow_to_the_end(self, metrics: dict[str, Any] | None = None, *, is_done: bool = False) -> None:
        """Reports as often as worker 0 until its command has ended, and then a last time."""
        while not self.exchange().chief_has_ended:
            time.sleep(_POLL_SECONDS)
        final = self._reports.final() if self._reports is not None and is_done else RunReport({})
        self._report({**(metrics or {}), **final.metrics}, final.folder, waits=True)

    def _report(self, metrics: dict[str, Any], folder: Path | None = None, *, waits: bool = False) -> None:
        import ray.train

        self._count += 1
        mode = ray.train.CheckpointUploadMode.SYNC if waits else ray.train.CheckpointUploadMode.ASYNC
        ray.train.report(
            metrics,
            checkpoint=None if folder is None else ray.train.Checkpoint.from_directory(folder),
            checkpoint_upload_mode=mode,
            delete_local_checkpoint_after_upload=True,
        )


def _get_end(worker: LaunchedWorker, attempt: int, reporter: _Reporter, config: dict[str, Any]) -> WorkerEnd:
    """Waits for the end of the command; ends it if it is silent for too long, or another worker has failed for good."""
    index, number, kills_at, silent = worker.place.index, None, float("inf"), False
    exchanges_at = 0.0
    while worker.status is None:
        if time.monotonic() < min(exchanges_at, kills_at):
            time.sleep(_POLL_SECONDS)
            continue
        exchanges_at = time.monotonic() + _EXCHANGE_SECONDS
        news = reporter.exchange()
        to_send = news.signal or (signal.SIGTERM if news.is_over else None)
        if to_send is not None and number is None:
            number, kills_at = to_send, time.monotonic() + config["grace_seconds"]
            worker.signal(number)
        beat = worker.last_heartbeat()
        silent = beat is not None and beat.age_seconds > config["silence_seconds"]
        if silent or time.monotonic() > kills_at:
            worker.kill()
            break
    status = worker.process.wait()
    cause = f"Worker {index} {'gave no sign of life, and ' if silent else ''}{worker.how_it_ended()}."
    worker.end()
    reporter.exchange()
    return WorkerEnd(attempt, index, status, cause, "" if status == DONE else worker.last_words())


def _is_settled(exchange: Any) -> bool:
    """Whether starting again is out of the question: the driver was told to stop, or another worker failed for good."""
    until = time.monotonic() + _OTHERS_SECONDS
    while time.monotonic() < until:
        news = exchange()
        if news.signal is not None or news.is_over:
            return True
        time.sleep(_POLL_SECONDS)
    return False


class _NewLines:
    """The lines that are added to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = path.stat().st_size if path.exists() else 0

    def read(self) -> list[str]:
        """The complete lines since the last call."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._position)
            text, newline, _ = file.read().rpartition(b"\n")
            self._position += len(text + newline)
            return (text + newline).decode(errors="replace").splitlines()
        return []
