"""Which cores and GPUs each worker of a machine gets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tfaccel.errors import LaunchError
from tfaccel.hardware.hardware import Hardware

MAX_WORKERS_PER_CORE = 16


@dataclass(frozen=True)
class WorkerPlace:
    """A worker's place on its machine.

    Args:
        index: of the worker.
        cores: the hardware threads that it is pinned to; empty for all.
        gpus: the GPUs that it sees, as indices of those that the launcher sees.
    """

    index: int
    cores: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()


def worker_places(
    num_workers: int,
    hardware: Hardware,
    *,
    cores: Sequence[int] | None = None,
    cores_per_worker: int | None = None,
    gpus_per_worker: int | None = None,
) -> list[WorkerPlace]:
    """Divides a machine among workers.

    Args:
        num_workers: how many.
        hardware: the machine.
        cores: its hardware threads; by default those that this process may use.
        cores_per_worker: how many each worker gets; None to divide all of them evenly. With more workers than cores,
            none is pinned.
        gpus_per_worker: how many each worker gets; None to divide all of them evenly; 0 to train on CPUs.

    Raises:
        LaunchError: if the machine has too few cores or GPUs; the message says how many there are.

    Example:
        >>> [place.cores for place in worker_places(2, Hardware(), cores=range(5))]
        [(0, 1), (2, 3)]
        >>> worker_places(4, Hardware(), cores=range(2))[3]
        WorkerPlace(index=3, cores=(), gpus=())
    """
    usable = sorted(os.sched_getaffinity(0) if cores is None else cores)
    if num_workers > MAX_WORKERS_PER_CORE * len(usable):
        raise LaunchError(
            f"{num_workers} workers are too many for {len(usable)} cores: at most {MAX_WORKERS_PER_CORE} for each "
            "core. Lower --num_workers."
        )
    num_cores = len(usable) // num_workers if cores_per_worker is None else cores_per_worker
    if num_cores * num_workers > len(usable):
        raise LaunchError(
            f"{num_workers} workers with {num_cores} cores each need {num_cores * num_workers} cores; this process may "
            f"use {len(usable)}. Lower --cores_per_worker or --num_workers."
        )
    num_gpus = _gpus_per_worker(num_workers, len(hardware.gpus), gpus_per_worker)
    return [
        WorkerPlace(
            index,
            tuple(usable[index * num_cores : (index + 1) * num_cores]),
            tuple(range(index * num_gpus, (index + 1) * num_gpus)),
        )
        for index in range(num_workers)
    ]


def _gpus_per_worker(num_workers: int, there: int, wanted: int | None) -> int:
    if wanted is None and there and there < num_workers:
        raise LaunchError(
            f"There are {there} GPUs for {num_workers} workers. Start at most {there} workers, or train on CPUs: "
            "--gpus_per_worker=0."
        )
    count = there // num_workers if wanted is None else wanted
    if count * num_workers > there:
        raise LaunchError(
            f"{num_workers} workers with {count} GPUs each need {count * num_workers} GPUs; this machine has {there} "
            "(`tfaccel env` lists them). Lower --gpus_per_worker or --num_workers."
        )
    return count


def visible_gpus(place: WorkerPlace) -> dict[str, str]:
    """The environment variable that shows a worker its GPUs; empty if it has none of its own."""
    if not place.gpus:
        return {}
    visible = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    return {"CUDA_VISIBLE_DEVICES": ",".join(visible[gpu] if visible else str(gpu) for gpu in place.gpus)}
