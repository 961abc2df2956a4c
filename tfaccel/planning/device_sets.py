"""Which devices of a process hold the replicas: one rule for each kind of device, best set first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.planning.plan_settings import parse_device
from tfaccel.planning.workload import Workload

# With fewer examples, a replica's step on a logical CPU is too short to be worth summing gradients.
MIN_USEFUL_REPLICA_BATCH = 8
# The operations of one replica keep this many cores busy.
CORES_PER_LOGICAL_CPU = 8
# The wheels of TensorFlow 2.20 and 2.21 contain kernels for 6.0, 7.0, 8.0 and 8.9, and code for 9.0 that newer GPUs
# compile; TensorFlow ignores older GPUs. Source: tf.sysconfig.get_build_info()["cuda_compute_capabilities"].
MIN_COMPUTE_CAPABILITY = (6, 0)
# With fewer examples per replica, another GPU is hardly worth summing gradients, unless the workload says otherwise.
MIN_REPLICA_BATCH_SIZE = 32
# A recommended batch size may change by this fraction so that all GPUs share it; one set by the user never changes.
_MAX_BATCH_CHANGE = 0.02


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


@dataclass(frozen=True)
class GpuSet:
    """GPUs for one replica each, and the reason for choosing them."""

    gpus: tuple[Device, ...]
    reason: str


def unusable_gpus(gpus: tuple[Device, ...]) -> dict[str, str]:
    """Unusable GPU -> why TensorFlow cannot use it.

    Example:
        >>> unusable_gpus((Device(kind="GPU", index=0, model="Tesla K80", compute_capability=(3, 7)),))
        {'GPU:0': 'Tesla K80 has compute capability 3.7, and TensorFlow 2.20 and newer is built for 6.0 and above'}
    """
    found = {}
    for gpu in gpus:
        capability = gpu.compute_capability
        if capability is not None and capability < MIN_COMPUTE_CAPABILITY:
            found[gpu.name] = (
                f"{gpu.model or 'this GPU'} has compute capability {capability[0]}.{capability[1]}, and TensorFlow "
                f"2.20 and newer is built for {MIN_COMPUTE_CAPABILITY[0]}.{MIN_COMPUTE_CAPABILITY[1]} and above"
            )
    slices = [gpu for gpu in gpus if is_slice(gpu) and gpu.name not in found]
    if slices:
        found |= {gpu.name: f"a process can use one slice of a GPU (MIG), {slices[0].name}" for gpu in slices[1:]}
    return found


def is_slice(gpu: Device) -> bool:
    """Whether a device is a slice of a GPU (MIG)."""
    return re.search(r"\bMIG\b", gpu.model) is not None


def check_usable(gpus: tuple[Device, ...], chosen: tuple[str, ...]) -> None:
    """Raises PlanError if one of the chosen GPUs cannot be used, or several slices are chosen."""
    picked = tuple(gpu for gpu in gpus if gpu.name in chosen)
    for name, reason in unusable_gpus(picked).items():
        raise PlanError(f"{name} cannot be used: {reason}. Leave it out of `devices` (--devices), or use CPU:0.")


def gpu_sets(
    gpus: tuple[Device, ...], workload: Workload, fixed: Mapping[str, Any], *, num_workers: int
) -> list[GpuSet]:
    """As many equal GPUs as the batch keeps busy, then other numbers to measure; empty if no GPU is usable."""
    unusable = unusable_gpus(gpus)
    usable = tuple(gpu for gpu in gpus if gpu.name not in unusable)
    if not usable:
        return []
    strategy = fixed.get("strategy")
    alike, alike_reason = _most_alike(usable)
    best = max(usable, key=lambda gpu: (gpu.compute_capability or (0, 0), -gpu.index))
    is_one = strategy in ("none", "one_device")
    counts = (
        [1]
        if is_one
        else _even_counts(
            len(alike), workload, fixed, num_workers, at_least=1 + (strategy == "mirrored" and len(alike) > 1)
        )
    )
    chosen, why = counts[-1], ""
    if strategy is None and len(counts) > 1:
        chosen, why = _useful_count(counts, workload, fixed, num_workers)
    order = list(dict.fromkeys([chosen, counts[-1], 1 if strategy is None and num_workers == 1 else chosen]))
    sets = []
    for count in order:
        picked = (best,) if count == 1 and num_workers == 1 and strategy != "mirrored" else alike[:count]
        reason = alike_reason
        if is_one and len(usable) > 1:
            reason = f"One GPU, the fastest of {len(usable)}: strategy={strategy!r} uses one device. All: " + (
                f"{_flag(alike)} --strategy=mirrored."
            )
        elif count < len(alike):
            reason = _why_fewer(count, alike, counts, why, fixed, workload)
        elif len(alike) < len(usable):
            reason = f"{alike_reason} All: {_flag(usable)}."
        idle = "".join(f" {name} is not used: {text}." for name, text in unusable.items())
        sets.append(GpuSet(picked, reason + idle))
    return sets


def _even_counts(
    available: int, workload: Workload, fixed: Mapping[str, Any], num_workers: int, *, at_least: int
) -> list[int]:
    """Ascending numbers of GPUs that divide the batch evenly; for all GPUs, a recommended batch may change by 2 %."""
    recommended = "global_batch_size" not in fixed
    batch = fixed.get("global_batch_size", workload.global_batch_size)
    counts = []
    for count in range(at_least, available + 1):
        divisor = count * num_workers * fixed.get("accumulation_steps", 1)
        change = min(batch % divisor, divisor - batch % divisor)
        is_near = recommended and count == available and change <= _MAX_BATCH_CHANGE * batch
        if batch % divisor == 0 or is_near or (count == 1 and num_workers == 1):
            counts.append(count)
    return counts or [available if "global_batch_size" in fixed else at_least]


def _useful_count(counts: list[int], workload: Workload, fixed: Mapping[str, Any], num_workers: int) -> tuple[int, str]:
    """The largest number of GPUs whose replicas have enough examples, and the reason for not using more."""
    batch = fixed.get("global_batch_size", workload.global_batch_size)
    least = workload.min_replica_batch_size or MIN_REPLICA_BATCH_SIZE
    enough = [count for count in counts if batch // (count * num_workers) >= least]
    return max(enough, default=counts[0]), (
        f"with more, a replica would have fewer than {least} of the {batch} examples of a step, "
        "which is hardly worth summing gradients over them"
    )


def _why_fewer(
    count: int, alike: tuple[Device, ...], counts: list[int], why: str, fixed: Mapping[str, Any], workload: Workload
) -> str:
    """Why only `count` of the equal GPUs are used, and the flag that uses all."""
    batch = fixed.get("global_batch_size", workload.global_batch_size)
    opening = f"{count} of {len(alike)} GPUs" if count > 1 else f"One of {len(alike)} GPUs"
    if count == counts[-1]:
        neighbours = f"{batch // len(alike) * len(alike)} or {-(-batch // len(alike)) * len(alike)}"
        return (
            f"{opening}: the largest number that shares {batch} evenly. For all of them: "
            f"--global_batch_size={neighbours.removeprefix('0 or ')} with {_flag(alike)}."
        )
    most = alike[: counts[-1]]
    return f"{opening}: {why}. To use {'all' if most == alike else len(most)}: {_flag(most)}."


def _flag(gpus: tuple[Device, ...]) -> str:
    return f"--devices={','.join(gpu.name for gpu in gpus)}"


def _most_alike(gpus: tuple[Device, ...]) -> tuple[tuple[Device, ...], str]:
    """The largest group of GPUs of the same model (of equally large groups the more capable), and the reason."""
    models = dict.fromkeys(gpu.model for gpu in gpus)
    groups = [tuple(gpu for gpu in gpus if gpu.model == model) for model in models]
    largest = max(groups, key=lambda group: (len(group), group[0].compute_capability or (0, 0)))
    if len(groups) == 1:
        return largest, f"All {len(gpus)} GPUs: they are of one model." if len(gpus) > 1 else "The only GPU."
    name = largest[0].model or "unknown model"
    if len(largest) == 1:
        return largest, f"One GPU ({name}): the others are of other models, and replicas would wait for the slowest."
    return largest, f"The {len(largest)} GPUs of one model ({name}); replicas on others would wait for the slowest."
