"""One attempt to run all workers to their end: who failed first, how, and at which step."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfaccel.launching.launch_options import LaunchOptions
from tfaccel.launching.launched_worker import LaunchedWorker
from tfaccel.launching.worker_places import WorkerPlace
from tfaccel.processes import heartbeat
from tfaccel.processes.child import Environment
from tfaccel.processes.exit_status import DONE, PERMANENT, RETRY, can_be_retried
from tfaccel.processes.launched import ATTEMPT, STARTED
from tfaccel.processes.local_cluster import cluster_environments

_POLL_SECONDS = 0.05
# For the other workers to end by themselves, with what they have to say: if the first one did nothing but lose another
# one, the cause is still to come.
_OTHERS_SECONDS, _CAUSE_SECONDS = 1.0, 4.0
_ENDING_SECONDS = 5.0  # for a worker that has raised an exception to end
_MISSED_BEATS = 4  # make a worker suspect when another one has lost it
_HIDDEN_GPUS = {"CUDA_VISIBLE_DEVICES": "-1"}


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Args:
        status: `DONE`, the exit status of the worker that failed first, or `RETRY` for one that fell silent.
        worker: its index; None if all are done, or ended because they were told to.
        cause: what happened to it, in a sentence; empty if all are done.
        last_words: the end of its output.
        step: the last step that any worker had finished; None if none had.
    """

    status: int
    worker: int | None = None
    cause: str = ""
    last_words: str = ""
    step: int | None = None

    @property
    def can_be_retried(self) -> bool:
        """Whether another attempt may succeed."""
        return can_be_retried(self.status)


class Attempt:
    """Starts all workers of a command, and watches them until they have ended.

    Args:
        command: program and arguments, the same for all.
        places: their cores and GPUs.
        options: how they are treated.
        folder: for their logs.
        number: 1 for the first attempt.
        started: when the first attempt began, as text.
    """

    def __init__(
        self,
        command: Sequence[str],
        places: Sequence[WorkerPlace],
        options: LaunchOptions,
        *,
        folder: Path,
        number: int,
        started: str,
    ) -> None:
        self._silence_seconds = options.silence_seconds
        self._told: int | None = None
        self._killed = False
        self.workers: list[LaunchedWorker] = []
        marks = {ATTEMPT: str(number), STARTED: started, **(_HIDDEN_GPUS if options.gpus_per_worker == 0 else {})}
        clusters: Sequence[Environment] = [{"TF_CONFIG": None}]
        if len(places) > 1:
            clusters = cluster_environments(len(places))
        try:
            for place, cluster in zip(places, clusters, strict=True):
                environment = {**marks, **cluster}
                self.workers.append(
                    LaunchedWorker(command, place, environment=environment, folder=folder, shows=options.shows_output)
                )
        except BaseException:
            self._end()
            raise

    def tell(self, number: int) -> None:
        """Passes a signal on to all workers."""
        self._told = number
        for worker in self.workers:
            worker.signal(number)

    def kill(self) -> None:
        """Ends all workers at once; `outcome` returns."""
        self._killed = True

    def outcome(self) -> Outcome:
        """Waits for the end of all workers. When one fails, the others are ended: they would wait for it forever."""
        try:
            while any(worker.status is None for worker in self.workers) and not self._killed:
                failed = [worker for worker in self.workers if worker.status not in (None, DONE)]
                if failed and self._told is None:
                    self._wait_for_others()
                    return self._of_failure()
                silent = self._silent(self._silence_seconds)
                if silent is not None and self._told is None:
                    return self._of_silence(*silent)
                time.sleep(_POLL_SECONDS)
            if self._told is None and all(worker.status == DONE for worker in self.workers):
                return Outcome(DONE)
            return self._of_failure() if self._told is None else self._of_signal()
        finally:
            self._end()

    def _wait_for_others(self) -> None:
        """Lets the other workers notice: the one that failed first may have noticed another one's failure."""
        began = time.monotonic()
        while any(worker.status is None for worker in self.workers):
            ended = [worker.status for worker in self.workers if worker.status not in (None, DONE)]
            limit = _CAUSE_SECONDS if all(status == RETRY for status in ended) else _OTHERS_SECONDS
            if time.monotonic() - began > limit:
                return
            time.sleep(_POLL_SECONDS)

    def _of_failure(self) -> Outcome:
        ended = [worker for worker in self.workers if worker.status not in (None, DONE)]
        causes = [worker for worker in ended if worker.status != RETRY]  # the others only lost a worker
        silent = self._silent(_MISSED_BEATS * heartbeat.SECONDS)
        if silent is not None and all((worker.status or 0) < 0 for worker in causes):  # TensorFlow may abort the others
            return self._of_silence(*silent)
        first = min(causes or ended, key=lambda worker: worker.ended_at or 0.0)
        index, step = first.place.index, self._last_step()
        self._end()
        said = first.last_sentence() if first.status == RETRY else ""
        cause = f"Worker {index} of {len(self.workers)} {first.how_it_ended()}{f': {said}' if said else '.'}"
        return Outcome(first.status or 0, index, cause, first.last_words(), step)

    def _silent(self, limit_seconds: float) -> tuple[LaunchedWorker, float] | None:
        """The worker that has been silent for longer, and for how long."""
        for worker in self.workers:
            beat = worker.last_heartbeat() if worker.status is None else None
            has_failed = beat is not None and beat.phase == heartbeat.FAILED
            if beat is not None and beat.age_seconds > (
                min(_ENDING_SECONDS, limit_seconds) if has_failed else limit_seconds
            ):
                return worker, beat.age_seconds
        return None

    def _of_silence(self, worker: LaunchedWorker, seconds: float) -> Outcome:
        index, beat = worker.place.index, worker.last_heartbeat()
        doing = f", while {beat.phase}" if beat is not None else ""
        cause = f"Worker {index} of {len(self.workers)} has given no sign of life for {seconds:.0f} seconds{doing}."
        has_failed = beat is not None and beat.phase == heartbeat.FAILED  # TensorFlow waits for the other workers
        if has_failed:
            cause = (
                f"Worker {index} of {len(self.workers)} raised an exception, and did not end within {seconds:.0f} s."
            )
        step = self._last_step()
        self._end()
        return Outcome(PERMANENT if has_failed else RETRY, index, cause, worker.last_words(), step)

    def _of_signal(self) -> Outcome:
        """After a signal: done if all are; otherwise the status with which all ended, or the signal."""
        statuses = {worker.status for worker in self.workers if worker.status is not None}
        self._end()
        if statuses == {DONE}:
            return Outcome(DONE)
        number = self._told or signal.SIGKILL
        return Outcome(statuses.pop() if len(statuses) == 1 else -number, cause="The workers were told to stop.")

    def _last_step(self) -> int | None:
        beats = [worker.last_heartbeat() for worker in self.workers]
        return max((beat.step for beat in beats if beat is not None and beat.step is not None), default=None)

    def _end(self) -> None:
        for worker in self.workers:
            worker.end()
