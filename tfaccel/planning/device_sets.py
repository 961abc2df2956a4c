"""Which devices of a process hold the replicas: one rule for each kind of device, best set first."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.gpu_sets import check_usable, gpu_sets, unusable_gpus
from tfaccel.planning.plan_settings import parse_device
from tfaccel.planning.workload import Workload

# With fewer examples, a replica's step on a logical CPU is too short to be worth summing gradients.
MIN_USEFUL_REPLICA_BATCH = 8
# The operations of one replica keep this many cores busy.
CORES_PER_LOGICAL_CPU = 8


@dataclass(frozen=True)
class DeviceSet:
    """Devices for one replica each, and the reason."""

    devices: tuple[str, ...]
    reason: str
    num_logical_cpus: int = 1


def device_sets(
    hardware: Hardware, workload: Workload, fixed: Mapping[str, Any], *, num_workers: int
) -> list[DeviceSet]:
    """The sets of devices to propose; only `devices` if it is fixed.

    Raises:
        PlanError: if a fixed device, or any device for a fixed strategy, does not exist; it names those that do.
    """
    if "devices" in fixed:
        return [_given(hardware, fixed)]
    strategy = fixed.get("strategy")
    wants_tpu = strategy == "tpu" or fixed.get("tpu") is not None
    if wants_tpu or (strategy is None and hardware.tpus and not _wants_cpus(fixed)):
        return [_all_tpus(hardware)]
    if hardware.gpus and not _wants_cpus(fixed):
        found = gpu_sets(hardware.gpus, workload, fixed, num_workers=num_workers)
        if found:
            return [DeviceSet(tuple(gpu.name for gpu in one.gpus), one.reason) for one in found]
    sets = cpu_sets(hardware, workload, fixed, num_workers=num_workers)
    unusable = "".join(f" {name} is not used: {why}." for name, why in unusable_gpus(hardware.gpus).items())
    return [replace(one, reason=one.reason + unusable) for one in sets]


def cpu_sets(hardware: Hardware, workload: Workload, fixed: Mapping[str, Any], *, num_workers: int) -> list[DeviceSet]:
    """The whole CPU as one device; with many cores, also as several logical devices with a replica each."""
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
        if cores >= count * CORES_PER_LOGICAL_CPU and batch % count == 0 and batch // count >= MIN_USEFUL_REPLICA_BATCH
    ]
    reason = "{} replicas with {} of {} cores each: small operations do not keep so many cores busy. To be measured."
    return [whole, *(_logical_cpus(count, reason.format(count, cores // count, cores)) for count in counts)]


def _logical_cpus(count: int, reason: str) -> DeviceSet:
    return DeviceSet(tuple(f"CPU:{index}" for index in range(count)), reason, count)


def _wants_cpus(fixed: Mapping[str, Any]) -> bool:
    """Whether several logical CPUs were requested, which are useful only if the replicas run there."""
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
    check_usable(hardware.gpus, devices)
    return DeviceSet(devices, "Set by you.", fixed.get("num_logical_cpus", max(1, len(cpus))))


def _names(hardware: Hardware) -> str:
    return ", ".join(["CPU:0", *(device.name for device in hardware.devices)])
