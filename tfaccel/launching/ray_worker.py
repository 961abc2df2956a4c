"""What each worker of a run on Ray does: it runs the command in a process of its own, and reports how that ended."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from tfaccel.launching.launched_worker import LaunchedWorker
from tfaccel.launching.ray_board import News, WorkerEnd
from tfaccel.launching.worker_places import WorkerPlace
from tfaccel.processes.exit_status import DONE
from tfaccel.processes.launched import ATTEMPT, STARTED

logger = logging.getLogger("tfaccel")

_POLL_SECONDS = 0.2
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
            "silence_seconds"; "run_dir", whose result is reported with the model, or None.

    Raises:
        WorkerLostError: if starting again may help.
    """
    import ray

    board = config["board"]
    place = json.loads(os.environ["TF_CONFIG"])
    index, addresses = place["task"]["index"], place["cluster"]["worker"]
    attempt = ray.get(board.begin.remote(",".join(addresses)), timeout=_ANSWER_SECONDS)
    environment = {
        **_NOT_PASSED_ON,
        **config["environment"],
        ATTEMPT: str(attempt),
        STARTED: config["started"],
        **({"TF_CONFIG": ""} if len(addresses) == 1 else {}),
    }
    with contextlib.suppress(OSError):  # the driver's directory, if this node has it
        os.chdir(config["directory"])
    folder = Path(config["log_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    cores = tuple(config["cores"][index]) if config["cores"] else ()
    log = _NewLines(folder / f"worker-{index}.log")
    worker = LaunchedWorker(config["command"], WorkerPlace(index, cores), environment=environment, folder=folder)
    try:

        def exchange() -> News:
            news: News = ray.get(board.exchange.remote(index, attempt, log.read()), timeout=_ANSWER_SECONDS)
            return news

        end = _end_of(worker, attempt, exchange, config)
        ray.get(board.end.remote(end), timeout=_ANSWER_SECONDS)
        if end.status != DONE and not end.is_final and not _is_settled(exchange):
            raise WorkerLostError(end.cause)
        exchange()
    finally:
        worker.end()
    _report(end, config)


def _report(end: WorkerEnd, config: dict[str, Any]) -> None:
    """Reports the end to Ray, which waits until all workers have done so; the chief adds what its run gave."""
    import ray.train

    metrics: dict[str, Any] = {"exit_status": end.status}
    run_dir = None if end.index or end.status != DONE or not config["run_dir"] else Path(config["run_dir"])
    if run_dir is None or not (run_dir / "result.json").is_file():
        ray.train.report(metrics)
        return
    metrics |= json.loads((run_dir / "result.json").read_text())["final"]
    with tempfile.TemporaryDirectory(prefix="tfaccel-ray-") as folder:
        shutil.copy(run_dir / "model.keras", folder)
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


def _end_of(worker: LaunchedWorker, attempt: int, exchange: Any, config: dict[str, Any]) -> WorkerEnd:
    """Waits for the end of the command; ends it if it is silent for too long, or another worker has failed for good."""
    index, number, kills_at, silent = worker.place.index, None, float("inf"), False
    while worker.status is None:
        news = exchange()
        to_send = news.signal or (signal.SIGTERM if news.is_over else None)
        if to_send is not None and number is None:
            number, kills_at = to_send, time.monotonic() + config["grace_seconds"]
            worker.signal(number)
        beat = worker.last_heartbeat()
        silent = beat is not None and beat.age_seconds > config["silence_seconds"]
        if silent or time.monotonic() > kills_at:
            worker.kill()
            break
        time.sleep(_POLL_SECONDS)
    status = worker.process.wait()
    cause = f"Worker {index} {'gave no sign of life, and ' if silent else ''}{worker.how_it_ended()}."
    worker.end()
    exchange()
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
