"""What each worker of a run on Ray does, what it reports, and what it and the driver tell each other.

It runs the command in a process of its own, and reports metrics, checkpoints, and how the command ended.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfaccel.launching.local_worker import LaunchedWorker, WorkerPlace
from tfaccel.processes.launched import ATTEMPT, DONE, NUM_WORKERS, STARTED, can_be_retried

_ROWS, _CHECKPOINTS, _RESULT = "metrics.jsonl", "checkpoints", "result.json"
_RUN_FILES = ("config.json", "plan.json", _ROWS, "raw_input.json")
_FINISHED_FILES = ("model.keras", _RESULT)
_NO_METRICS = ("performance",)  # of a row
logger = logging.getLogger("tfaccel")
_POLL_SECONDS = 0.2
_EXCHANGE_SECONDS = 1.0  # each exchange with the board takes some milliseconds of the workers' cores
_ANSWER_SECONDS = 30.0
_OTHERS_SECONDS = 5.0  # for the cause of a failure, if it is another worker's, to become known
# Ray sets these for its own processes; with the first, TensorFlow would load Keras 2.
_NOT_PASSED_ON = {"TF_USE_LEGACY_KERAS": None, "PYTHONBREAKPOINT": None}


@dataclass(frozen=True)
class RunReport:
    """What to report.

    Args:
        metrics: of the last epoch; `checkpoint_step` is the step of the checkpoint.
        folder: a temporary folder with the checkpoint; None for metrics alone.
    """

    metrics: dict[str, Any]
    folder: Path | None = None


class RunReports:
    """Finds what is new in a run directory.

    Args:
        run_dir: the directory, which need not exist yet.
        scratch: a folder for copies of checkpoints; on the disk of the run directory, these are links.

    Example:
        >>> RunReports(Path("no/such/run"), Path("logs")).news() is None
        True
    """

    def __init__(self, run_dir: Path, scratch: Path) -> None:
        self._run_dir = run_dir
        self._scratch = scratch
        self._last = self._state()

    def news(self) -> RunReport | None:
        """A report, if there is a checkpoint or a line of metrics more; only the newest of each is reported."""
        state = self._state()
        if state == self._last:
            return None
        newest, metrics, folder = state[0], self._metrics(), None
        if newest is not None and newest != self._last[0]:
            try:
                folder = self._copy(newest, _RUN_FILES)
                metrics["checkpoint_step"] = int(newest.partition("_")[2])
            except FileNotFoundError:  # a newer one has taken its place meanwhile
                return None
            except OSError as error:
                logger.warning(f"The checkpoint {newest} was not reported: {error}. Training goes on.")
        self._last = state
        return RunReport(metrics, folder)

    def final(self) -> RunReport:
        """The report of a run that has ended: if it is complete, the final metrics, and the run with its model."""
        if not (self._run_dir / _RESULT).is_file():
            return RunReport({})
        folder = self._copy(self._state()[0], (*_RUN_FILES, *_FINISHED_FILES))
        return RunReport(json.loads((self._run_dir / _RESULT).read_text())["final"], folder)

    def _state(self) -> tuple[str | None, int]:
        """The name of the newest checkpoint, and the size of the file of metrics."""
        names: list[str] = []
        size = 0
        with contextlib.suppress(OSError):
            names = [name for name in os.listdir(self._run_dir / _CHECKPOINTS) if name.startswith("step_")]
        with contextlib.suppress(OSError):
            size = (self._run_dir / _ROWS).stat().st_size
        return max((name for name in names if name.removeprefix("step_").isdecimal()), default=None), size

    def _metrics(self) -> dict[str, Any]:
        """The last row of metrics."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            row = json.loads((self._run_dir / _ROWS).read_text().splitlines()[-1])
            return {name: value for name, value in row.items() if name not in _NO_METRICS}
        return {}

    def _copy(self, checkpoint: str | None, files: tuple[str, ...]) -> Path:
        """A copy of a checkpoint and of files of the run, as a run directory.

        Raises:
            FileNotFoundError: if the checkpoint is being deleted.
        """
        folder = Path(tempfile.mkdtemp(prefix=".report-", dir=self._scratch))
        try:
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy(self._run_dir / name, folder)
            if checkpoint is not None:
                place = Path(_CHECKPOINTS, checkpoint)
                (folder / place).mkdir(parents=True)
                for file in sorted((self._run_dir / place).iterdir()):
                    _link(file, folder / place / file.name)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder


def _link(source: Path, target: Path) -> None:
    """Links a file, which is never changed, or copies it to another disk."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy(source, target)


def put_back(folder: Path, run_dir: Path) -> bool:
    """Makes a run directory that has no checkpoint one that can be resumed, from a reported one; whether it did."""
    if any(run_dir.glob(f"{_CHECKPOINTS}/step_*")):
        return False
    shutil.copytree(folder, run_dir, dirs_exist_ok=True)
    return True


class WorkerLostError(RuntimeError):
    """A worker's command ended so that starting again may help: Ray restarts all workers, if it may."""


def run_worker(config: dict[str, Any]) -> None:
    """The training function of Ray's workers.

    Args:
        config: "board", the actor; "command"; "environment"; "started", when the run was launched; "directory", of the
            driver; "log_dir"; "cores", a list for each worker, empty for all cores; "grace_seconds";
            "silence_seconds"; "num_workers", of the whole group; "run_dir", whose metrics and checkpoints are reported,
            or None.
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
    """The number of started workers that train: the largest that divides the whole group's batches.

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
        silent = worker.silent_seconds() > config["silence_seconds"]
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


@dataclass(frozen=True)
class WorkerEnd:
    """How a worker's command ended.

    Args:
        attempt: 1 for the first.
        index: of the worker.
        status: exit status; negative for a signal.
        cause: in a sentence.
        last_words: the end of its output.
    """

    attempt: int
    index: int
    status: int
    cause: str = ""
    last_words: str = ""

    @property
    def is_final(self) -> bool:
        """Whether starting again would not help."""
        return self.status != DONE and not can_be_retried(self.status)


@dataclass(frozen=True)
class News:
    """What a worker must know while its command runs.

    Args:
        signal: the signal that the driver received; None for none.
        is_over: whether another worker of this attempt has failed for good.
        num_reports: how often the workers of this attempt must have reported to Ray by now.
        chief_has_ended: whether the command of worker 0 has ended, so that `num_reports` stays as it is.
    """

    signal: int | None = None
    is_over: bool = False
    num_reports: int = 0
    chief_has_ended: bool = False


class Board:
    """Collects attempts, output and ends of all workers.

    Example:
        >>> board = Board()
        >>> board.begin("host1:1,host2:1"), board.begin("host1:1,host2:1"), board.begin("host1:2,host2:2")
        (1, 1, 2)
        >>> board.end(WorkerEnd(attempt=2, index=1, status=1))
        >>> board.exchange(0, 2, ["step 1"], num_reports=1), board.lines()
        (News(signal=None, is_over=True, num_reports=1, chief_has_ended=False), [(0, 'step 1')])
    """

    def __init__(self) -> None:
        self._clusters: list[str] = []
        self._lines: list[tuple[int, str]] = []
        self._ends: list[WorkerEnd] = []
        self._num_reports: dict[int, int] = {}
        self._signal: int | None = None
        self._heard_at = time.monotonic()

    def begin(self, cluster: str) -> int:
        """The number of a worker's attempt: Ray gives the workers of each attempt new addresses."""
        self._heard_at = time.monotonic()
        if cluster not in self._clusters:
            self._clusters.append(cluster)
        return self._clusters.index(cluster) + 1

    def exchange(self, index: int, attempt: int, lines: Sequence[str], num_reports: int = 0) -> News:
        """Takes a worker's output; returns what it must know.

        Args:
            index, attempt: of the worker.
            lines: the output since the last call.
            num_reports: how often it has reported to Ray, or is about to; the others follow worker 0.
        """
        self._heard_at = time.monotonic()
        self._lines += [(index, line) for line in lines]
        self._num_reports[attempt] = max(num_reports, self._num_reports.get(attempt, 0))
        ends = [end for end in self._ends if end.attempt == attempt]
        return News(
            self._signal,
            is_over=any(end.is_final for end in ends),
            num_reports=self._num_reports[attempt],
            chief_has_ended=any(end.index == 0 for end in ends),
        )

    def end(self, end: WorkerEnd) -> None:
        """Takes note of the end of a worker's command."""
        self._heard_at = time.monotonic()
        self._ends.append(end)

    def tell(self, number: int) -> None:
        """Passes a signal on to all workers."""
        self._signal = number

    def lines(self) -> list[tuple[int, str]]:
        """The output since the last call, each line with the index of its worker."""
        lines, self._lines = self._lines, []
        return lines

    def num_workers(self) -> list[int]:
        """The number of workers of each attempt so far."""
        return [len(cluster.split(",")) for cluster in self._clusters]

    def ends(self) -> list[WorkerEnd]:
        """The ends of all commands so far."""
        return self._ends

    def silent_seconds(self) -> float:
        """How long no worker has been heard of."""
        return time.monotonic() - self._heard_at
