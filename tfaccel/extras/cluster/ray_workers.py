"""The engine "ray" of `train` and `search`: their workers on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from tfaccel.errors import LaunchError, SearchError
from tfaccel.extras.cluster.cluster_job import ClusterJob
from tfaccel.extras.cluster.ray_connection import check_ray_is_installed, connected
from tfaccel.extras.cluster.ray_engine import run_on_ray
from tfaccel.extras.cluster.ray_fork_server import RayForkServer
from tfaccel.extras.cluster.ray_options import RayOptions
from tfaccel.known_names import check_names
from tfaccel.processes.child import Environment

_OF_RAY = tuple(one.name for one in fields(RayOptions) if one.name != "log_dir")
_OF_JOB = ("name", "cores_per_worker", "gpus_per_worker", "max_restarts", "grace_seconds", "environment")
_OF_SEARCH = ("address", "connect_seconds", "wait_seconds", "cores_per_worker", "gpus_per_worker")
_NO_GPUS = {"CUDA_VISIBLE_DEVICES": "-1"}

OPTIONS = (*_OF_RAY, *_OF_JOB)


class RayWorkers:
    """Workers that train.

    Args:
        num_workers: how many.
        options: those of `RayOptions` and `ClusterJob`.

    Raises:
        LaunchError: for an option that has no such value.
    """

    options = OPTIONS

    def __init__(self, num_workers: int, options: Mapping[str, Any]) -> None:
        self._num_workers, self._given = num_workers, options
        self._ray(Path())
        self._job(("true",))

    def run(
        self, command: Sequence[str], *, folder: Path, on_event: Callable[[str], None], shows_output: bool = True
    ) -> int:
        """Runs a command as each worker; see `WorkerGroup.run`."""
        on_line = _show if shows_output else _drop
        return run_on_ray(self._job(command), self._ray(folder), on_line=on_line, on_event=on_event)

    def _ray(self, folder: str | os.PathLike[str]) -> RayOptions:
        return RayOptions(log_dir=folder, **_taken(self._given, _OF_RAY))

    def _job(self, command: Sequence[str]) -> ClusterJob:
        return ClusterJob(command=tuple(command), num_workers=self._num_workers, **_taken(self._given, _OF_JOB))


class RaySearch:
    """Workers of a search.

    Args:
        parallel: how many.
        options: some of those of `RayOptions` and `ClusterJob`.

    Raises:
        SearchError: for an unknown option.
        LaunchError: for a value of the wrong kind.

    Attributes:
        cores_per_worker: cores of each.
        wait_seconds: how long to wait for a place.
    """

    def __init__(self, parallel: int, options: Mapping[str, Any]) -> None:
        check_names(options, _OF_SEARCH, SearchError, "A search on Ray has no option {!r}.")
        self._ray = RayOptions(log_dir=".", **_taken(options, _OF_RAY))
        job = {"cores_per_worker": 1, **_taken(options, _OF_JOB)}
        self._job = ClusterJob(command=("tfaccel", "tune"), num_workers=parallel, **job)
        self.cores_per_worker = self._job.cores_per_worker
        self.wait_seconds = self._ray.wait_seconds

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Within the block, this process is connected to the cluster.

        Raises:
            LaunchError: if Ray is not installed, or its cluster does not answer.
        """
        check_ray_is_installed()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(connected(self._job, self._ray.address, seconds=self._ray.connect_seconds))
            except LaunchError as error:  # its workers are the search's
                raise LaunchError(str(error).replace("--num_workers", "--parallel")) from error
            yield

    def fork_server(self, preload: Sequence[str], environment: Environment) -> RayForkServer:
        """Starts the workers; used like a `ForkServer`."""
        cores, gpus = self._job.cores_per_worker or 1, self._job.gpus_per_worker
        environment = {**environment, **({} if gpus else _NO_GPUS)}
        return RayForkServer(preload, environment=environment, cores=cores, gpus=gpus)


def _taken(given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _show(index: int, line: str) -> None:
    sys.stdout.write(f"[{index}] {line}\n")
    sys.stdout.flush()


def _drop(index: int, line: str) -> None:
    """Leaves a line to the log."""
