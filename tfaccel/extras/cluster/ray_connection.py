"""Connects to a Ray cluster, or starts one on this machine; every wait has an end."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from tfaccel.errors import LaunchError
from tfaccel.extras.cluster.cluster_job import ClusterJob
from tfaccel.extras.cluster.ray_options import CONNECT_SECONDS
from tfaccel.hardware.detect import detect_hardware
from tfaccel.launching.worker_places import WorkerPlace, worker_places
from tfaccel.processes.child import ProcessError, last_words, run_program

logger = logging.getLogger("tfaccel")

_TRIES = 3
_NOT_UP_IN_TIME = "timed out during startup"  # Ray's words
ADDRESS_VARIABLE = "RAY_ADDRESS"  # Ray's own
_OBJECT_STORE_BYTES = 100 * 2**20  # workers exchange their data with TensorFlow; Ray takes a third of the memory
_TRY = """
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except BaseException as error:
    sys.exit(" ".join(str(error).split())[:300] or repr(error))
"""


def check_ray_is_installed() -> None:
    """Checks that the extra `ray` is installed.

    Raises:
        LaunchError: if it is not; the message says how to install it.
    """
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
                raise LaunchError(f"Ray cannot start: {' '.join(str(error).split()):.300}") from error
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
