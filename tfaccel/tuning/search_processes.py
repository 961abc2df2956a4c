"""The processes of a search: its chief here, its workers here or on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfaccel.errors import LaunchError, SearchError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.machine import Machine
from tfaccel.known_names import check_names, did_you_mean
from tfaccel.launching.cluster_job import ClusterJob
from tfaccel.launching.ray_connection import check_ray_is_installed, connected
from tfaccel.launching.ray_fork_server import RayChild, RayForkServer
from tfaccel.launching.ray_options import RayOptions
from tfaccel.processes.fork_server import ForkedChild, ForkServer
from tfaccel.tuning.device_groups import DeviceGroup, device_groups

ENGINES = ("local", "ray")
CHIEF = "tfaccel.tuning.chief_program"
WORKER = "tfaccel.tuning.worker_program"
PRELOADED = (
    "keras_tuner.oracles",
    "tfaccel.tuning.discovery",
    "tfaccel.tuning.hparams",
    "tfaccel.tuning.oracles",
    "tfaccel.tuning.retrain",
    "tfaccel.tuning.trial_run",
)
_ENVIRONMENT = {
    "TF_CONFIG": None,
    "KERAS_BACKEND": "tensorflow",
    "KERASTUNER_ORACLE_IP": None,
    "KERASTUNER_ORACLE_PORT": None,
    "TF_USE_LEGACY_KERAS": None,
}
_NO_GPUS = {"CUDA_VISIBLE_DEVICES": "-1"}
_REMOTE_SECONDS, _LOCAL_SECONDS = 0.15, 0.05
_OF_RAY = ("address", "connect_seconds", "wait_seconds")
_OF_JOB = ("cores_per_worker", "gpus_per_worker")

AnyChild = ForkedChild | RayChild


@dataclass(frozen=True, kw_only=True)
class WorkerPlaces:
    """Where the workers of a search run.

    Args:
        groups: the devices of each.
        ray: on Ray, how long to wait for places, and the cores and GPUs of each worker; None for this machine.
    """

    groups: list[DeviceGroup]
    ray: tuple[RayOptions, ClusterJob] | None = None

    @property
    def wait_seconds(self) -> float:
        """How long to wait for a place on Ray."""
        return 0.0 if self.ray is None else self.ray[0].wait_seconds


@contextlib.contextmanager
def worker_places(parallel: int, engine: str | None, options: Mapping[str, Any] | None) -> Iterator[WorkerPlaces]:
    """Within the block, workers can be started.

    Args:
        parallel: how many.
        engine, options: as `engine` and `engine_options` of `tfaccel.search`.

    Raises:
        SearchError: for an unknown engine or option, or options that no engine takes.
        LaunchError: if Ray is not installed, or its cluster does not answer.
    """
    engine = engine or "local"
    if engine not in ENGINES:
        raise SearchError(
            f"`engine` must be one of {', '.join(ENGINES)}. Received: engine={engine!r}.{did_you_mean(engine, ENGINES)}"
        )
    if engine == "local":
        if options:
            raise SearchError(f"engine_options are for engine='ray'. Received: {dict(options)!r:.200} with 'local'.")
        yield WorkerPlaces(groups=device_groups(parallel, detect_hardware(), Machine.here()))
        return
    given = dict(options or {})
    check_names(given, (*_OF_RAY, *_OF_JOB), SearchError, "A search on Ray has no option {!r}.")
    ray = RayOptions(log_dir=".", **{name: given[name] for name in _OF_RAY if name in given})
    resources = {name: given[name] for name in _OF_JOB if name in given}
    job = ClusterJob(command=("tfaccel", "tune"), num_workers=parallel, **{"cores_per_worker": 1, **resources})
    check_ray_is_installed()
    group = DeviceGroup(plan_fields=(("intra_op_threads", job.cores_per_worker),))
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(connected(job, ray.address, seconds=ray.connect_seconds))
        except LaunchError as error:  # its workers are this search's
            raise LaunchError(str(error).replace("--num_workers", "--parallel")) from error
        yield WorkerPlaces(groups=[group] * parallel, ray=(ray, job))


class SearchProcesses:
    """Starts the chief and the workers of a search.

    Args:
        places: of the workers.
    """

    def __init__(self, places: WorkerPlaces) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tfaccel-"))  # for logs, until there is a run directory
        self._here = ForkServer(PRELOADED, folder=self._folder, environment=_ENVIRONMENT)
        self._ray: RayForkServer | None = None
        if places.ray is not None:
            _, job = places.ray
            environment = {**_ENVIRONMENT, **({} if job.gpus_per_worker else _NO_GPUS)}
            cores, gpus = job.cores_per_worker or 1, job.gpus_per_worker
            self._ray = RayForkServer(PRELOADED, environment=environment, cores=cores, gpus=gpus)

    def start_chief(self) -> ForkedChild:
        """Starts the chief."""
        return self._here.start("chief", CHIEF, [], _NO_GPUS)

    def start_worker(self, index: int, arguments: Sequence[str], environment: Mapping[str, str]) -> AnyChild:
        """Starts a worker."""
        server = self._ray or self._here
        return server.start(f"worker-{index}", WORKER, arguments, environment)

    def kill(self, child: AnyChild) -> None:
        """Kills a process, and all that it has started."""
        if isinstance(child, RayChild):
            self._on_ray.kill(child)
        else:
            self._here.kill(child)

    def next_message(self) -> tuple[AnyChild | None, Any]:
        """The next message of any process, or None as its last; (None, None) if none arrives in a while."""
        if self._ray is None:
            return self._here.next_message(_REMOTE_SECONDS + _LOCAL_SECONDS)
        child, message = self._here.next_message(_LOCAL_SECONDS)
        return (child, message) if child is not None else self._ray.next_message(_REMOTE_SECONDS)

    def waiting_seconds(self, child: AnyChild) -> float:
        """How long Ray has been looking for a place for a process; 0 if it has one."""
        return self._on_ray.waiting_seconds(child) if isinstance(child, RayChild) else 0.0

    def release(self, child: AnyChild) -> None:
        """Gives back the place of a worker that has ended, or stops looking for one."""
        if isinstance(child, RayChild):
            self._on_ray.release(child)

    def end_of_log(self, child: AnyChild) -> str:
        """The end of a process's log."""
        return self._on_ray.end_of_log(child) if isinstance(child, RayChild) else self._here.end_of_log(child)

    def close(self, logs: Path | None) -> None:
        """Ends all processes.

        Args:
            logs: the folder to keep their logs in; None to drop them.
        """
        if logs is not None:
            logs.mkdir(exist_ok=True)
            if self._ray is not None:
                self._ray.save_logs(logs)
        if self._ray is not None:
            self._ray.close()
        self._here.close()
        for log in self._folder.glob("*.log") if logs is not None else ():
            shutil.copy(log, logs or Path() / log.name)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _on_ray(self) -> RayForkServer:
        if self._ray is None:
            raise RuntimeError("no worker is on Ray")
        return self._ray
