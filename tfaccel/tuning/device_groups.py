"""Device groups: the GPUs or CPU cores assigned to each worker of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfaccel.errors import SearchError
from tfaccel.hardware.hardware import Hardware
from tfaccel.hardware.machine import Machine
from tfaccel.records import Record

_USABLE_GPU_MEMORY = 0.9


@dataclass(frozen=True, kw_only=True)
class DeviceGroup(Record):
    """The devices that one worker may use.

    Args:
        cores: logical CPUs that the worker is pinned to; empty for no pinning.
        visible_gpus: value of CUDA_VISIBLE_DEVICES; None leaves it unchanged.
        plan_fields: plan fields that sharing a device requires.
    """

    cores: tuple[int, ...] = ()
    visible_gpus: str | None = None
    plan_fields: tuple[tuple[str, Any], ...] = ()


def device_groups(parallel: int, hardware: Hardware, machine: Machine) -> list[DeviceGroup]:
    """Divides the devices among the workers.

    GPUs are divided evenly. With more workers than GPUs, several workers share a GPU, each with a fraction of its
    memory. CPU cores are divided the same way.

    Raises:
        SearchError: if several workers would share a TPU, which only one process can use.

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
        groups.append(DeviceGroup(cores=cores, visible_gpus=visible, plan_fields=tuple(fields.items())))
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
