"""`run_on_ray`: runs a command as each worker of a job, by Ray Train, on a Ray cluster or one that is started here."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from tfaccel.errors import LaunchError, in_one_line
from tfaccel.extras.cluster.cluster_job import CONNECT_SECONDS, ClusterJob, RayOptions
from tfaccel.extras.cluster.ray_worker import Board, WorkerEnd, num_active_workers, run_worker
from tfaccel.hardware.detect import detect_hardware
from tfaccel.launching.local_launcher import make_log_folder, signals_noted
from tfaccel.launching.local_worker import WorkerPlace, found_command, worker_places
from tfaccel.local_path import local_path
from tfaccel.processes.child import ProcessError, last_words, run_program
from tfaccel.processes.launched import DONE, INTERRUPTED, RETRY, final_status
from tfaccel.processes.quiet_start import without_notes

_TRIES = 3
_NOT_UP_IN_TIME = "timed out during startup"  # Ray's words
ADDRESS_VARIABLE = "RAY_ADDRESS"  # Ray's own
_OBJECT_STORE_BYTES = 100 * 2**20  # workers exchange their data with TensorFlow; Ray takes a third of the memory
_TRY = """
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except BaseException as error:
    sys.exit(in_one_line(error, 300) or repr(error))
"""
logger = logging.getLogger("tfaccel")
_POLL_SECONDS = 0.5
_ANSWER_SECONDS = 30.0
_KEPT_CHECKPOINTS = 2  # as tfaccel's own


def check_ray_is_installed() -> None:
    """Checks that the extra `ray` is installed."""
    if find_spec("ray") is None:
        raise LaunchError("The engine `ray` needs Ray, which is not installed. Install it: pip install 'tfaccel[ray]'")


@contextlib.contextmanager
def connected(job: ClusterJob, address: str | None, *, seconds: float = CONNECT_SECONDS) -> Iterator[list[WorkerPlace]]:
    """Within the block, this process is connected to a Ray cluster.

    A connection that the process has already is used, and stays.

    Args:
        job: a cluster that is started here gets the cores and GPUs of its workers.
        address: of the cluster's head, as "host:port"; "auto" for the one that runs on this machine. None for the one
            that `RAY_ADDRESS` names; without that, starts a cluster on this machine, and ends it after the block.
        seconds: how long to wait for an answer.

    Yields:
        The places of the workers, if the cluster was started here; otherwise none, since other programs may have a
        place on the nodes as well.

    Raises:
        LaunchError: if the cluster does not answer in time, this machine has too few cores or GPUs, or Ray cannot
            start.
    """
    address = address or os.environ.get(ADDRESS_VARIABLE) or None
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        yield []
        return
    if address is not None:
        _try(address, seconds)
    places = _places(job) if address is None else []
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {
            "num_cpus": job.num_workers * (job.cores_per_worker or 1),
            "num_gpus": job.num_workers * job.gpus_per_worker,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
    import ray

    _start(address or "local", options)
    try:
        yield places
    finally:
        ray.shutdown()


def _start(address: str, options: dict[str, Any]) -> None:
    """Connects, or starts a cluster; again if it was not up in time, for which Ray gives it 30 seconds."""
    import ray

    for tries_left in reversed(range(_TRIES)):
        try:
            ray.init(address=address, **options)
            return
        except Exception as error:  # Ray raises what it likes
            ray.shutdown()
            if not tries_left or _NOT_UP_IN_TIME not in str(error):
                raise LaunchError(f"Ray cannot start: {in_one_line(error):.300}") from error
            logger.info("Ray was not up in time, perhaps because this machine is busy. It is started again.")


def _places(job: ClusterJob) -> list[WorkerPlace]:
    return worker_places(
        job.num_workers,
        detect_hardware(),
        cores_per_worker=job.cores_per_worker or 1,
        gpus_per_worker=job.gpus_per_worker,
    )


def _try(address: str, seconds: float) -> None:
    """Connects in a child process first: Ray waits for an address that does not answer as long as it likes."""
    if "://" in address:
        raise LaunchError(
            f"Give the address of the head of the Ray cluster as host:port, such as 10.0.0.1:6379, or auto. Received: "
            f"{address!r}. From outside of the cluster, use `ray job submit -- tfaccel launch --engine=ray ...`."
        )
    ends = time.monotonic() + seconds
    host, _, port = address.rpartition(":")
    try:
        if host and port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
        left = max(1.0, ends - time.monotonic())
        run_program([sys.executable, "-c", _TRY, address], time_limit_seconds=left)
    except TimeoutError as error:
        raise _unusable(address, f"does not answer within {seconds:g} seconds") from error
    except (OSError, OverflowError) as error:
        raise _unusable(address, f"cannot be reached: {getattr(error, 'strerror', None) or error}") from error
    except ProcessError as error:
        if "was ended" in error.how:
            raise _unusable(address, f"does not answer within {seconds:g} seconds") from error
        raise _unusable(address, f"cannot be used: {last_words(error.output)}") from error


def _unusable(address: str, fault: str) -> LaunchError:
    return LaunchError(
        f"The Ray cluster at {address} {fault.rstrip('.')}. Check the address, that `ray status --address={address}` "
        "answers, and that this machine is part of the cluster."
    )


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
        make_log_folder(folder)
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
        with signals_noted(self._pass_on):
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
                num_workers=num_workers, use_gpu=job.gpus_per_worker > 0, resources_per_worker=resources
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
            return final_status(final.status)
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
            text = in_one_line(self._error)
            raise LaunchError(f"Ray cannot run the workers: {text:.500}") from self._error
        self._on_event(f"{self._cause()} All {self._job.max_restarts} restarts are spent (--max_restarts).")
        return RETRY

    def _pass_on(self, number: int) -> None:
        """Passes a signal on to the workers."""
        self._told.append(number)
        self._board.tell.remote(number)
