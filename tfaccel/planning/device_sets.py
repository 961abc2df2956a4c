"""Which devices of a process hold the replicas: one rule for each kind of device, best set first."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.planning.plan_fields import parse_device
from tfaccel.planning.workload import Workload

# Below this share of the global batch, a replica's step is too short to be worth summing gradients over devices.
SMALLEST_USEFUL_REPLICA_BATCH = 8
# Fewer cores than this are kept busy by the operations of one replica.
CORES_PER_LOGICAL_CPU = 8


@dataclass(frozen=True)
class DeviceSet:
    """Devices for one replica each, and why these."""

    devices: tuple[str, ...]
    reason: str
    num_logical_cpus: int = 1


def device_sets(
    hardware: Hardware, workload: Workload, fixed: Mapping[str, Any], *, num_workers: int
) -> list[DeviceSet]:
    """The sets of devices to propose; a fixed `devices` is the only one.

    Raises:
        PlanError: if a fixed device, or any device for a fixed strategy, is not there; it names those that are.
    """
    if "devices" in fixed:
        return [_given(hardware, fixed)]
    strategy = fixed.get("strategy")
    wants_tpu = strategy == "tpu" or fixed.get("tpu") is not None
    if wants_tpu or (strategy is None and hardware.tpus and not _wants_cpus(fixed)):
        return [_all_tpus(hardware)]
    if hardware.gpus and not _wants_cpus(fixed):
        return gpu_sets(hardware.gpus, workload, fixed, num_workers=num_workers)
    return cpu_sets(hardware, workload, fixed, num_workers=num_workers)


def gpu_sets(
    gpus: tuple[Device, ...], workload: Workload, fixed: Mapping[str, Any], *, num_workers: int
) -> list[DeviceSet]:
    """As many equal GPUs as share the batch evenly, and one GPU alone; the latter first where shares get tiny."""
    strategy = fixed.get("strategy")
    alike, alike_reason = _most_alike(gpus)
    best = max(gpus, key=lambda gpu: (gpu.compute_capability or (0, 0), -gpu.index))
    single = DeviceSet(
        (best.name,), f"One GPU alone: the fastest of {len(gpus)}." if len(gpus) > 1 else "The only GPU."
    )
    if strategy in ("none", "one_device") or (len(alike) == 1 and num_workers == 1):
        return [single]
    count = _largest_even_count(len(alike), fixed, num_workers)
    several = DeviceSet(tuple(gpu.name for gpu in alike[:count]), alike_reason)
    if count < len(alike):
        reason = f"{count} of {len(alike)} GPUs: the largest number that shares {fixed['global_batch_size']} evenly."
        several = DeviceSet(several.devices, reason)
    if strategy is not None or num_workers > 1:
        return [several]
    share = int(fixed.get("global_batch_size", workload.global_batch_size)) // count
    return [several, single] if share >= SMALLEST_USEFUL_REPLICA_BATCH else [single, several]


def cpu_sets(hardware: Hardware, workload: Workload, fixed: Mapping[str, Any], *, num_workers: int) -> list[DeviceSet]:
    """The whole CPU as one device; on many cores, also as several logical devices with a replica each."""
    whole = DeviceSet(
        ("CPU:0",), "The CPU as one device: its operations use all usable cores.", fixed.get("num_logical_cpus", 1)
    )
    one_device = fixed.get("strategy") in ("none", "one_device") or num_workers > 1
    if "num_logical_cpus" in fixed:
        count = fixed["num_logical_cpus"]
        return [whole if one_device or count == 1 else _logical_cpus(count, "All logical CPUs, a replica on each.")]
    if one_device:
        return [whole]
    cores = min(hardware.num_usable_cores, hardware.num_physical_cores)
    batch = fixed.get("global_batch_size", workload.global_batch_size)
    counts = [
        count
        for count in (2, 4)
        if cores >= count * CORES_PER_LOGICAL_CPU
        and batch % count == 0
        and batch // count >= SMALLEST_USEFUL_REPLICA_BATCH
    ]
    reason = "{} replicas with {} of {} cores each: small operations do not keep so many cores busy. To be measured."
    return [whole, *(_logical_cpus(count, reason.format(count, cores // count, cores)) for count in counts)]


def _logical_cpus(count: int, reason: str) -> DeviceSet:
    return DeviceSet(tuple(f"CPU:{index}" for index in range(count)), reason, count)


def _wants_cpus(fixed: Mapping[str, Any]) -> bool:
    """Several logical CPUs were asked for, which are of use only if the replicas run there."""
    return bool(fixed.get("num_logical_cpus", 1) > 1)


def _all_tpus(hardware: Hardware) -> DeviceSet:
    if not hardware.tpus:
        raise PlanError(
            f"strategy='tpu' needs a TPU. Devices here: {_names(hardware)}. For a TPU that is reached by its name, set "
            "`tpu` and list its cores in `devices`."
        )
    return DeviceSet(tuple(tpu.name for tpu in hardware.tpus), "All TPU devices: TPUStrategy uses them together.")


def _given(hardware: Hardware, fixed: Mapping[str, Any]) -> DeviceSet:
    devices = tuple(fixed["devices"])
    parsed = [parse_device(device) for device in devices]
    remote_tpu = fixed.get("tpu") not in (None, "local")
    there = {device.name for device in hardware.devices}
    missing = [
        device
        for device, (kind, _) in zip(devices, parsed, strict=True)
        if device not in there and kind != "CPU" and not (kind == "TPU" and remote_tpu)
    ]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise PlanError(f"{', '.join(missing)} {are} not there. Devices here: {_names(hardware)}.")
    cpus = sorted(index for kind, index in parsed if kind == "CPU")
    if "num_logical_cpus" not in fixed and cpus != list(range(len(cpus))):
        raise PlanError(
            f"CPU:{cpus[-1]} is not there. Devices here: {_names(hardware)}. To divide the CPU, name its parts from "
            f"CPU:0 on, or set num_logical_cpus={cpus[-1] + 1} (--logical_cpus)."
        )
    return DeviceSet(devices, "Set by you.", fixed.get("num_logical_cpus", max(1, len(cpus))))


def _names(hardware: Hardware) -> str:
    return ", ".join(["CPU:0", *(device.name for device in hardware.devices)])


def _most_alike(gpus: tuple[Device, ...]) -> tuple[tuple[Device, ...], str]:
    """The largest group of GPUs of one model (the more capable of two equally large ones)."""
    models = dict.fromkeys(gpu.model for gpu in gpus)
    groups = [tuple(gpu for gpu in gpus if gpu.model == model) for model in models]
    largest = max(groups, key=lambda group: (len(group), group[0].compute_capability or (0, 0)))
    if len(groups) == 1:
        return largest, f"All {len(gpus)} GPUs: they are of one model." if len(gpus) > 1 else "The only GPU."
    name = largest[0].model or "unknown model"
    return largest, f"The {len(largest)} GPUs of one model ({name}); replicas on others would wait for the slowest."


def _largest_even_count(count: int, fixed: Mapping[str, Any], num_workers: int) -> int:
    """The largest number of devices, at least 2 in one process, that shares a fixed batch evenly; else all of them."""
    batch, steps = fixed.get("global_batch_size"), fixed.get("accumulation_steps", 1)
    if batch is None:
        return count
    fewest = 1 if num_workers > 1 else 2
    even = [n for n in range(count, fewest - 1, -1) if batch % (n * num_workers * steps) == 0]
    return even[0] if even else count
