"""Which of a machine's GPUs hold replicas, and why the others are idle."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Device
from tfaccel.planning.workload import Workload

# The wheels of TensorFlow 2.20 and 2.21 contain kernels for 6.0, 7.0, 8.0 and 8.9, and code for 9.0 that newer GPUs
# compile; TensorFlow ignores older GPUs. Source: tf.sysconfig.get_build_info()["cuda_compute_capabilities"].
MIN_COMPUTE_CAPABILITY = (6, 0)
# With fewer examples per replica, another GPU is hardly worth summing gradients, unless the workload says otherwise.
MIN_REPLICA_BATCH_SIZE = 32
# A recommended batch size may change by this fraction so that all GPUs share it; one set by the user never changes.
_MAX_BATCH_CHANGE = 0.02


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
