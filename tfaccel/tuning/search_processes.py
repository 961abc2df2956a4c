"""The processes of a search, and their devices: its chief here, its workers here or on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfaccel.errors import SearchError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Hardware
from tfaccel.hardware.machine import Machine
from tfaccel.known_names import did_you_mean
from tfaccel.load_extra import load_extra
from tfaccel.processes.fork_server import ForkedChild, ForkServer

ENGINES = ("local", "ray")
CHIEF = "tfaccel.tuning.chief_program"
WORKER = "tfaccel.tuning.worker_program"
_PROGRAMS = (CHIEF, WORKER)  # loaded once, with all that they import
START_ANEW = 75  # the exit status of a worker that is to be started again
FOLD = "FOLD"  # the status in an answer to a worker that trains a fold of another worker's trial
_ENVIRONMENT = {
    "TF_CONFIG": None,
    "KERAS_BACKEND": "tensorflow",
    "KERASTUNER_ORACLE_IP": None,
    "KERASTUNER_ORACLE_PORT": None,
    "TF_USE_LEGACY_KERAS": None,
}
_NO_GPUS = {"CUDA_VISIBLE_DEVICES": "-1"}
_REMOTE_SECONDS, _LOCAL_SECONDS = 0.15, 0.05
_USABLE_GPU_MEMORY = 0.9


@dataclass(frozen=True, kw_only=True)
class DeviceGroup:
    """The devices that one worker may use.

    Args:
        cores: logical CPUs that the worker is pinned to; empty for no pinning.
        visible_gpus: value of CUDA_VISIBLE_DEVICES; None leaves it unchanged.
        plan_fields: plan fields that sharing a device requires.
    """

    cores: tuple[int, ...] = ()
    visible_gpus: str | None = None
    plan_fields: Mapping[str, Any] = field(default_factory=dict)


def device_groups(parallel: int, hardware: Hardware, machine: Machine) -> list[DeviceGroup]:
    """Divides the devices among the workers.

    GPUs are divided evenly. With more workers than GPUs, several workers share a GPU, each with a fraction of its
    memory. CPU cores are divided the same way.

    Example:
        >>> here = Machine(root="", environ={}, cpu_affinity=frozenset(range(8)))
        >>> [group.cores for group in device_groups(2, Hardware(num_usable_cores=8), here)]
        [(0, 1, 2, 3), (4, 5, 6, 7)]
    """
    if hardware.tpus and parallel > 1:
        raise SearchError(f"Only one process at a time can use a TPU. Received: parallel={parallel}. Use parallel=1.")
    allowed = sorted(machine.cpu_affinity)
    threads = max(1, hardware.num_usable_cores // parallel)
    groups = []
    for index in range(parallel):
        fields: dict[str, Any] = {}
        cores: tuple[int, ...] = ()
        if parallel > 1 and len(allowed) == hardware.num_usable_cores:
            cores = _share(allowed, index, parallel)
        elif parallel > 1:  # the quota limits CPU time, not which cores: limit the threads instead
            fields["intra_op_threads"] = threads
        gpus, memory = _gpus(index, parallel, hardware)
        if memory is not None:
            fields["gpu_memory_limit_bytes"] = memory
        visible = None if gpus is None else _names(gpus, machine)
        groups.append(DeviceGroup(cores=cores, visible_gpus=visible, plan_fields=fields))
    return groups


def _share(things: list[int], index: int, parallel: int) -> tuple[int, ...]:
    """The items of one worker; a single, possibly shared one if there are fewer items than workers."""
    if parallel >= len(things):
        return (things[index % len(things)],)
    first, last = len(things) * index // parallel, len(things) * (index + 1) // parallel
    return tuple(things[first:last])


def _gpus(index: int, parallel: int, hardware: Hardware) -> tuple[tuple[int, ...] | None, int | None]:
    """A worker's GPUs, and its memory limit per GPU if workers share them."""
    if not hardware.gpus or parallel == 1:
        return None, None
    own = _share([gpu.index for gpu in hardware.gpus], index, parallel)
    sharers = -(-parallel // len(hardware.gpus))
    memory = hardware.gpus[own[0]].memory_bytes
    if sharers == 1 or memory is None:
        return own, None
    return own, int(memory * _USABLE_GPU_MEMORY / sharers)


def _names(indices: tuple[int, ...], machine: Machine) -> str:
    """Maps GPU indices of this process to values for CUDA_VISIBLE_DEVICES."""
    visible = machine.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in visible.split(",")] if visible else None
    return ",".join(str(index) if names is None else names[index] for index in indices)


class SearchProcesses:
    """Starts the chief and the workers of a search, and brings their messages.

    Args:
        groups: the devices of each worker.
        cluster: a `RaySearch`, which finds places for the workers; None for this machine.
    """

    def __init__(self, groups: list[DeviceGroup], cluster: Any = None) -> None:
        self.groups = groups
        self.wait_seconds = 0.0 if cluster is None else float(cluster.wait_seconds)
        self._cluster = cluster

    def open(self) -> None:
        """Prepares to start processes; call `close` afterwards."""
        self._folder = Path(tempfile.mkdtemp(prefix="tfaccel-"))  # for logs, until there is a run directory
        self._here = ForkServer(_PROGRAMS, folder=self._folder, environment=_ENVIRONMENT)
        self._remote: Any = self._cluster and self._cluster.fork_server(_PROGRAMS, _ENVIRONMENT)

    def start_chief(self) -> ForkedChild:
        """Starts the chief."""
        return self._here.start("chief", CHIEF, [], _NO_GPUS)

    def start_worker(self, index: int) -> Any:
        """Starts a worker."""
        visible = self.groups[index].visible_gpus
        environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        server = self._remote or self._here
        return server.start(f"worker-{index}", WORKER, [], environment)

    def _server(self, child: Any) -> Any:
        return self._here if isinstance(child, ForkedChild) else self._remote

    def kill(self, child: Any) -> None:
        """Kills a process, and all that it has started."""
        self._server(child).kill(child)

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
        return str(self._server(child).end_of_log(child))

    def close(self, logs: Path | None) -> None:
        """Ends all processes; keeps their logs in this folder."""
        if logs is not None:
            logs.mkdir(exist_ok=True)
        if self._remote is not None:
            if logs is not None:
                self._remote.save_logs(logs)
            self._remote.close()
        self._here.close()
        if logs is not None:
            for log in self._folder.glob("*.log"):
                shutil.copy(log, logs)
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def processes_on(engine: str | None, parallel: int, options: Mapping[str, Any] | None) -> Iterator[SearchProcesses]:
    """Within the block, the processes of a search can be started.

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
        yield SearchProcesses(device_groups(parallel, detect_hardware(), Machine.here()))
        return
    cluster = load_extra("ray_search")(parallel, dict(options or {}))
    group = DeviceGroup(plan_fields={"intra_op_threads": cluster.cores_per_worker})
    with cluster.connected():
        yield SearchProcesses([group] * parallel, cluster)
