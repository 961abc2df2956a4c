"""`run_on_ray`: runs a command as each worker of a job, on a Ray cluster, by Ray Train."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfaccel.errors import LaunchError
from tfaccel.extras.cluster.cluster_job import ClusterJob
from tfaccel.extras.cluster.ray_board import Board, WorkerEnd
from tfaccel.extras.cluster.ray_connection import ADDRESS_VARIABLE, check_ray_is_installed, connected
from tfaccel.extras.cluster.ray_options import RayOptions
from tfaccel.extras.cluster.ray_worker import num_active_workers, run_worker
from tfaccel.launching.found_command import found_command
from tfaccel.launching.worker_places import WorkerPlace
from tfaccel.local_path import local_path
from tfaccel.processes.exit_status import DONE, INTERRUPTED, PERMANENT, RETRY
from tfaccel.processes.quiet_start import without_notes

logger = logging.getLogger("tfaccel")

_POLL_SECONDS = 0.5
_ANSWER_SECONDS = 30.0
_KEPT_CHECKPOINTS = 2  # as tfaccel's own
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_on_ray(
    job: ClusterJob,
    options: RayOptions,
    *,
    on_line: Callable[[int, str], None] | None = None,
    on_event: Callable[[str], None] = logger.info,
) -> int:
    """Runs a job's command as each worker of a Ray cluster, with Ray Train's `TensorflowTrainer`.

    Ray chooses the nodes and sets `TF_CONFIG`; each worker runs the command in a process of its own. If one is killed,
    is silent, ends with status 138, or its node is lost, Ray starts all workers again, up to `max_restarts` times, and
    training continues from its newest checkpoint, which must be on a disk that all nodes share. SIGTERM and Ctrl-C are
    passed on to the workers, which then save and end; a second one ends them at once.

    Args:
        job: what to run. Its time limit and its memory are left to the cluster.
        options: where to run it.
        on_line: called with a worker's index and each line of its output; None to log them.
        on_event: called with a line of text when workers start or fail.

    Returns:
        The exit status: 0 if all workers are done, 138 if starting again may succeed, 130 after Ctrl-C, otherwise 1.

    Raises:
        LaunchError: if Ray is not installed, its cluster does not answer, or has no room for the workers.

    Reference:
        [Ray Train](https://docs.ray.io/en/latest/train/train.html)
    """
    if options.min_workers is not None and options.min_workers > job.num_workers:
        raise LaunchError(
            f"Training may go on with fewer workers, not with more. Received: min_workers={options.min_workers} "
            f"(--min_workers), num_workers={job.num_workers}."
        )
    check_ray_is_installed()
    if options.address is None and not os.environ.get(ADDRESS_VARIABLE):  # nodes of another cluster have their own
        found_command(job.command)
    folder = local_path(options.log_dir, LaunchError)
    if folder.exists() and not folder.is_dir():
        raise LaunchError(f"The folder for logs {folder} cannot be created: there is a file of that name.")
    with connected(job, options.address, seconds=options.connect_seconds) as places:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchError(f"The folder for logs {folder} cannot be created: {error.strerror}.") from error
        return _Run(job, options, on_line or _log_line, on_event, places=places).run()


def _log_line(index: int, line: str) -> None:
    logger.info(f"[{index}] {line}")


class _Run:
    """A run on the cluster that this process is connected to."""

    def __init__(
        self,
        job: ClusterJob,
        options: RayOptions,
        on_line: Callable[[int, str], None],
        on_event: Callable[[str], None],
        *,
        places: list[WorkerPlace],
    ) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._job, self._options = job, options
        self._on_line, self._on_event = on_line, on_event
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        remote: Any = ray.remote  # its types know no strategies
        self._board: Any = remote(num_cpus=0, scheduling_strategy=here)(Board).remote()
        self._cores = [list(place.cores) for place in places]
        self._error: BaseException | None = None
        self._told: list[int] = []
        self._attempt = 0

    def run(self) -> int:
        """Starts the workers, and waits for their end."""
        trainer = self._trainer()
        # In the main thread, Ray would take Ctrl-C for itself, and end the workers before they can save.
        thread = threading.Thread(target=self._fit, args=(trainer,), name="Ray Train", daemon=True)
        with self._signals():
            thread.start()
            while thread.is_alive() and len(self._told) < 2:
                self._look()
                thread.join(_POLL_SECONDS)
        self._look()
        if len(self._told) >= 2:
            return INTERRUPTED if signal.SIGINT in self._told else RETRY
        return self._status(self._ask("ends"))

    def _trainer(self) -> Any:
        import ray.train

        with without_notes(wants_gpus=False):
            from ray.train.tensorflow import TensorflowTrainer
        job, options = self._job, self._options
        log_dir = local_path(options.log_dir, LaunchError).absolute()
        resources: dict[str, float] = {"CPU": job.cores_per_worker or 1}
        if job.gpus_per_worker:
            resources["GPU"] = job.gpus_per_worker
        started = time.strftime("%Y%m%d-%H%M%S")
        config = {
            "board": self._board,
            "command": list(job.command),
            "environment": dict(job.environment),
            "started": started,
            "directory": os.getcwd(),
            "log_dir": str(log_dir),
            "cores": self._cores,
            "grace_seconds": job.grace_seconds,
            "silence_seconds": options.silence_seconds,
            "num_workers": job.num_workers,
            "run_dir": job.flag("run_dir"),
        }
        least, most = options.min_workers, job.num_workers
        num_workers: Any = most if least is None else (least, most)  # its types know no pairs
        return TensorflowTrainer(
            run_worker,
            train_loop_config=config,
            scaling_config=ray.train.ScalingConfig(
                num_workers=num_workers,
                use_gpu=job.gpus_per_worker > 0,
                resources_per_worker=resources,
            ),
            run_config=ray.train.RunConfig(
                name=f"{job.name}-{started}-{secrets.token_hex(2)}",  # by a used name, Ray finds others' checkpoints
                storage_path=options.storage_path or str(log_dir / "ray"),
                failure_config=ray.train.FailureConfig(max_failures=job.max_restarts),
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=_KEPT_CHECKPOINTS),
            ),
        )

    def _fit(self, trainer: Any) -> None:
        try:
            trainer.fit()
        except BaseException as error:
            self._error = error

    def _ask(self, name: str, *arguments: Any) -> Any:
        import ray

        return ray.get(getattr(self._board, name).remote(*arguments), timeout=_ANSWER_SECONDS)

    def _look(self) -> None:
        """Shows what the workers have said, and stops waiting for a place that Ray does not find."""
        for index, line in self._ask("lines"):
            self._on_line(index, line)
        sizes = self._ask("num_workers")
        if len(sizes) > self._attempt:
            if self._attempt:
                self._on_event(f"{self._cause(sizes)} Ray starts all workers again, from the last checkpoint.")
            self._attempt = len(sizes)
            self._on_event(f"attempt {self._attempt}: {self._told_size(sizes[-1])}; logs in {self._options.log_dir}")
        if self._ask("silent_seconds") > self._options.wait_seconds:
            raise LaunchError(
                f"Ray has found no place for {self._job.num_workers} workers within {self._options.wait_seconds:g} "
                f"seconds. {self._resources()}"
            )

    def _told_size(self, num_started: int) -> str:
        """The number of workers, in words."""
        whole, active = self._job.num_workers, num_active_workers(num_started, self._job.num_workers)
        return f"{active} workers" if active == whole else f"{active} of {whole} workers, with the batches of {whole}"

    def _cause(self, sizes: Sequence[int] = ()) -> str:
        """Why the current attempt, of those with these numbers of workers, ended."""
        ends = [end for end in self._ask("ends") if end.attempt == self._attempt and end.status != DONE]
        causes = [end for end in ends if end.status != RETRY] or ends  # the others only lost a worker
        if not causes and sizes and sizes[-1] > sizes[self._attempt - 1]:
            return "There is a place for more workers."
        return causes[0].cause if causes else "A worker or its node was lost."

    def _resources(self) -> str:
        import ray

        there = ray.cluster_resources()
        job = self._job
        asked = f"{job.cores_per_worker or 1} cores and {job.gpus_per_worker} GPUs each"
        return f"Received: {asked}; the cluster has {there.get('CPU', 0):g} cores and {there.get('GPU', 0):g} GPUs."

    def _status(self, ends: list[WorkerEnd]) -> int:
        """The exit status; says what went wrong."""
        last = [end for end in ends if end.attempt == self._attempt]
        told = (INTERRUPTED, -signal.SIGINT) if self._told else ()
        final = next((end for end in last if end.is_final and end.status not in told), None)
        if final is not None:
            self._on_event(f"{final.cause} Starting again would not help.")
            if final.last_words:
                self._on_event(final.last_words)
            return PERMANENT
        if self._told:
            self._on_event("The workers were told to stop.")
            statuses = {end.status for end in last}
            if statuses <= {DONE, RETRY} and last:
                return DONE if statuses == {DONE} else RETRY
            return INTERRUPTED if self._told[0] == signal.SIGINT else RETRY
        if self._error is None:
            return DONE
        return self._lost()

    def _lost(self) -> int:
        """The exit status after Ray has given up."""
        import ray.train

        if not isinstance(self._error, ray.train.TrainingFailedError) or self._attempt == 0:
            text = " ".join(str(self._error).split())
            raise LaunchError(f"Ray cannot run the workers: {text:.500}") from self._error
        self._on_event(f"{self._cause()} All {self._job.max_restarts} restarts are spent (--max_restarts).")
        return RETRY

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Passes signals on to the workers."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def pass_on(number: int, frame: Any) -> None:
            self._told.append(number)
            self._board.tell.remote(number)

        before = {number: signal.signal(number, pass_on) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
