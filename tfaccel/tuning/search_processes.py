"""The processes of a search: its chief here, its workers here or on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfaccel.errors import SearchError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.machine import Machine
from tfaccel.known_names import did_you_mean
from tfaccel.load_extra import load_extra
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


@dataclass(frozen=True, kw_only=True)
class WorkerPlaces:
    """Where the workers of a search run.

    Args:
        groups: the devices of each.
        cluster: a `RaySearch`; None for this machine.
    """

    groups: list[DeviceGroup]
    cluster: Any = None

    @property
    def wait_seconds(self) -> float:
        """How long to wait for a place on a cluster."""
        return 0.0 if self.cluster is None else float(self.cluster.wait_seconds)


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
    cluster = load_extra("ray_search")(parallel, dict(options or {}))
    group = DeviceGroup(plan_fields=(("intra_op_threads", cluster.cores_per_worker),))
    with cluster.connected():
        yield WorkerPlaces(groups=[group] * parallel, cluster=cluster)


class SearchProcesses:
    """Starts the chief and the workers of a search.

    Args:
        places: of the workers.
    """

    def __init__(self, places: WorkerPlaces) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tfaccel-"))  # for logs, until there is a run directory
        self._here = ForkServer(PRELOADED, folder=self._folder, environment=_ENVIRONMENT)
        cluster = places.cluster
        self._remote: Any = None if cluster is None else cluster.fork_server(PRELOADED, _ENVIRONMENT)

    def start_chief(self) -> ForkedChild:
        """Starts the chief."""
        return self._here.start("chief", CHIEF, [], _NO_GPUS)

    def start_worker(self, index: int, arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
        """Starts a worker."""
        server = self._remote or self._here
        return server.start(f"worker-{index}", WORKER, arguments, environment)

    def kill(self, child: Any) -> None:
        """Kills a process, and all that it has started."""
        (self._here if isinstance(child, ForkedChild) else self._remote).kill(child)

    def next_message(self) -> tuple[Any | None, Any]:
        """The next message of any process, or None as its last; (None, None) if none arrives in a while."""
        if self._remote is None:
            return self._here.next_message(_REMOTE_SECONDS + _LOCAL_SECONDS)
        child, message = self._here.next_message(_LOCAL_SECONDS)
        return (child, message) if child is not None else self._remote.next_message(_REMOTE_SECONDS)

    def waiting_seconds(self, child: Any) -> float:
        """How long a cluster has been looking for a place for a process; 0 if it has one."""
        return 0.0 if isinstance(child, ForkedChild) else float(self._remote.waiting_seconds(child))

    def release(self, child: Any) -> None:
        """Gives back the place of a worker that has ended, or stops looking for one."""
        if not isinstance(child, ForkedChild):
            self._remote.release(child)

    def end_of_log(self, child: Any) -> str:
        """The end of a process's log."""
        return str((self._here if isinstance(child, ForkedChild) else self._remote).end_of_log(child))

    def close(self, logs: Path | None) -> None:
        """Ends all processes.

        Args:
            logs: the folder to keep their logs in; None to drop them.
        """
        if logs is not None:
            logs.mkdir(exist_ok=True)
            if self._remote is not None:
                self._remote.save_logs(logs)
        if self._remote is not None:
            self._remote.close()
        self._here.close()
        for log in self._folder.glob("*.log") if logs is not None else ():
            shutil.copy(log, logs or Path() / log.name)
        shutil.rmtree(self._folder, ignore_errors=True)
